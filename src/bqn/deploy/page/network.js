// The runtime: the bytes of a packed file in, integers out. It computes what `bqn.deploy.runtime` computes, for one
// example at a time, by and plus popcount on words of 32 bits.
//
// A value is {size: [channels, rows, columns], lattice, data}. Data lie in the order (row, column, channel). They are
// codes where there is a lattice [low, stride, levels], code k standing for low + stride * k, and integers elsewhere.
// The bits of a plane are one dense stream in that order, the least significant bit of a word first.
"use strict";

const FEATURE_BITS = 24;
const FEATURE_LIMIT = 4096;
const PIXELS = [-255, 2, 256];
const POWERS = Float64Array.from({length: 32}, (_, p) => 2 ** p);

// --- the file -------------------------------------------------------------------------------------------------------

/** Program and arrays of a packed file; each array is {shape, data} with the axis of members first. */
function readPacked(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const start = 8 + view.getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
  const program = JSON.parse(header.__metadata__.program);
  delete header.__metadata__;
  const arrays = new Map();
  for (const [name, {dtype, shape, data_offsets: [begin, end]}] of Object.entries(header))
    arrays.set(name, {shape, data: readNumbers(bytes.slice(start + begin, start + end).buffer, dtype)});
  return {program, arrays};
}

function readNumbers(buffer, dtype) {
  const kinds = {U8: Uint8Array, I8: Int8Array, I16: Int16Array, I32: Int32Array, F32: Float32Array};
  if (dtype in kinds) return new kinds[dtype](buffer);
  const words = new Int32Array(buffer);  // I64: no value that a threshold meets is beyond 2^53
  return Float64Array.from({length: words.length / 2}, (_, i) => {
    const [low, high] = [words[2 * i] >>> 0, words[2 * i + 1]];
    if (high > 2 ** 21 || (high === 2 ** 21 && low > 0)) return Infinity;
    return high < -(2 ** 21) ? -Infinity : high * 2 ** 32 + low;
  });
}

// --- bits -----------------------------------------------------------------------------------------------------------

const wordsFor = bits => (bits + 31) >>> 5;
const planesOf = lattice => (lattice[2] > 1 ? 32 - Math.clz32(lattice[2] - 1) : 0);

/** Put `count` bits of a stream from bit `from` on into another, whose bits from `to` on are still zero. */
function copyBits(source, from, target, to, count) {
  while (count > 0) {
    const shift = from & 31, at = to & 31;
    const taken = Math.min(count, 32 - at);
    let word = source[from >>> 5] >>> shift;
    if (shift) word |= source[(from >>> 5) + 1] << (32 - shift);  // beyond the end undefined, which shifts as zero
    if (taken < 32) word &= (1 << taken) - 1;
    target[to >>> 5] |= word << at;
    from += taken;
    to += taken;
    count -= taken;
  }
}

/** Codes as streams of bits, one a plane. */
function packPlanes(codes, planes) {
  return Array.from({length: planes}, (_, plane) => {
    const stream = new Uint32Array(wordsFor(codes.length));
    for (let i = 0; i < codes.length; i++) stream[i >>> 5] |= ((codes[i] >>> plane) & 1) << (i & 31);
    return stream;
  });
}

/** Bits that are set in a word, as four counts, one in each of its bytes. */
function countInBytes(word) {
  word -= (word >>> 1) & 0x55555555;
  word = (word & 0x33333333) + ((word >>> 2) & 0x33333333);
  return (word + (word >>> 4)) & 0x0f0f0f0f;
}

/** Bits that are set both in `words` words of x and in as many of w from `start` on. */
function countCommon(x, w, start, words) {
  let total = 0;
  for (let begin = 0; begin < words; begin += 31) {  // as many words as bytes can count: 31 * 8 < 256
    const end = Math.min(words, begin + 31);
    let bytes = 0;
    for (let i = begin; i < end; i++) bytes = (bytes + countInBytes(x[i] & w[start + i])) | 0;
    const pairs = (bytes & 0x00ff00ff) + ((bytes >>> 8) & 0x00ff00ff);
    total += (pairs & 0xffff) + (pairs >>> 16);
  }
  return total;
}

/** Add 2^place times the bits that x has in common with each of the filters in w, from the first to before the last. */
function addCommon(counts, place, x, w, words, first, last) {
  if (words === 1) {
    const word = x[0];
    for (let o = first; o < last; o++)
      counts[o] += (Math.imul(countInBytes(word & w[o]), 0x01010101) >>> 24) << place;
  } else {
    for (let o = first; o < last; o++) counts[o] += countCommon(x, w, o * words, words) << place;
  }
}

// --- values ---------------------------------------------------------------------------------------------------------

const emptyCodes = (count, lattice) => new (lattice[2] > 256 ? Uint16Array : Uint8Array)(count);
const volume = size => size[0] * size[1] * size[2];
const integers = (size, data) => ({size, lattice: null, data});

function decoded(value) {
  if (!value.lattice) return value.data;
  const [low, stride] = value.lattice;
  return Int32Array.from(value.data, code => low + stride * code);
}

function bitsOf(value) {
  value.bits ??= packPlanes(value.data, planesOf(value.lattice));
  return value.bits;
}

const outputSize = (size, kernel, stride, padding, dilation = 1) =>
  Math.floor((size + 2 * padding - dilation * (kernel - 1) - 1) / stride) + 1;

// --- products -------------------------------------------------------------------------------------------------------

/**
 * Weights (O, kh, kw, I / groups) of one member, ready for products: every filter starts at a word of its own.
 * With x = a + b X and w = c + d W for codes X and W, and the sums over the taps that lie inside of the image,
 * Σ w x = a Σ w + b c Σ X + b d Σ 2^(p+q) |X_p ∧ W_q| over all pairs p, q of planes.
 */
class Filters {
  constructor(op, weights, shape, bias) {
    const [outputs, rows, columns, channels] = shape;
    Object.assign(this, {op, outputs, rows, columns, channels, bias: bias ?? new Int32Array(outputs)});
    this.count = rows * columns * channels;
    this.words = wordsFor(this.count);
    this.planes = weights.map(stream => {
      const aligned = new Uint32Array(outputs * this.words);
      for (let o = 0; o < outputs; o++) copyBits(stream, o * this.count, aligned, o * this.words * 32, this.count);
      return aligned;
    });
    this.sums = new Map();
    this.common = new Int32Array(outputs);
  }

  /** For each filter the sum of its weights where a stream of bits is set; made once for each name of such a mask. */
  sumsInside(key, makeMask) {
    if (!this.sums.has(key)) {
      const [low, stride] = this.op.weight, mask = makeMask();
      const sums = new Float64Array(this.outputs).fill(low * countCommon(mask, mask, 0, this.words));
      this.planes.forEach((plane, q) => {
        for (let o = 0; o < this.outputs; o++)
          sums[o] += stride * POWERS[q] * countCommon(mask, plane, o * this.words, this.words);
      });
      this.sums.set(key, sums);
    }
    return this.sums.get(key);
  }

  /** Products of one window, given as streams of bits, with the filters from `first` to before `last`. */
  dot(window, lattice, inside, first, last, result, at) {
    const [a, b] = lattice, [c, d] = this.op.weight, words = this.words;
    let codes = 0;
    window.forEach((plane, p) => (codes += POWERS[p] * countCommon(plane, plane, 0, words)));
    this.common.fill(0);
    for (let p = 0; p < window.length; p++)
      for (let q = 0; q < this.planes.length; q++)
        addCommon(this.common, p + q, window[p], this.planes[q], words, first, last);
    for (let o = first; o < last; o++)
      result[at + o] = a * inside[o] + b * c * codes + b * d * this.common[o] + this.bias[o];
  }
}

function linear(op, x, filters) {
  const result = new (x.lattice ? Int32Array : Float64Array)(op.out_features);
  if (x.lattice) {
    const all = {first: 0, last: 0}, inside = filters.sumsInside("", () => maskOf(filters, all, all));
    filters.dot(bitsOf(x), x.lattice, inside, 0, filters.outputs, result, 0);
  } else {  // real-valued features: integers below 2^53, whose sums are exact
    const [low, stride] = op.weight;
    for (let o = 0; o < op.out_features; o++) {
      let total = filters.bias[o];
      for (let i = 0; i < op.in_features; i++) {
        let code = 0;
        const bit = o * filters.words * 32 + i;
        filters.planes.forEach((plane, q) => (code |= ((plane[bit >>> 5] >>> (bit & 31)) & 1) << q));
        total += (low + stride * code) * x.data[i];
      }
      result[o] = total;
    }
  }
  return integers([op.out_features, 1, 1], result);
}

function conv2d(op, x, filters) {
  const [, height, width] = x.size, {groups, stride, padding, dilation} = op;
  const vertical = spans(height, filters.rows, stride[0], padding[0], dilation[0]);
  const horizontal = spans(width, filters.columns, stride[1], padding[1], dilation[1]);
  const result = new Int32Array(vertical.length * horizontal.length * filters.outputs);
  const streams = bitsOf(x), perGroup = filters.outputs / groups;
  const window = streams.map(() => new Uint32Array(filters.words));
  let at = 0;
  for (const down of vertical)
    for (const across of horizontal) {
      const inside = filters.sumsInside(down.key + across.key, () => maskOf(filters, down, across));
      for (let group = 0; group < groups; group++) {
        for (let p = 0; p < streams.length; p++)
          copyWindow(streams[p], window[p], x.size, filters, group, down, across, dilation);
        filters.dot(window, x.lattice, inside, group * perGroup, (group + 1) * perGroup, result, at);
      }
      at += filters.outputs;
    }
  return integers([filters.outputs, vertical.length, horizontal.length], result);
}

/** For each place of a window along one axis: where it starts, and which of its taps lie inside. */
function spans(size, taps, stride, padding, dilation) {
  return Array.from({length: outputSize(size, taps, stride, padding, dilation)}, (_, place) => {
    const start = place * stride - padding;
    const first = Math.max(0, Math.ceil(-start / dilation));
    const last = Math.min(taps - 1, Math.floor((size - 1 - start) / dilation));
    return {start, first, last, key: ` ${first} ${last}`};
  });
}

/** The bits of the pixels under a window, zero beyond the border. */
function copyWindow(source, target, [channels, , width], filters, group, down, across, dilation) {
  const each = filters.channels, taps = across.last - across.first + 1;
  target.fill(0);
  if (taps < 1) return;
  for (let i = down.first; i <= down.last; i++) {
    const pixel = (down.start + i * dilation[0]) * width + across.start + across.first * dilation[1];
    const tap = i * filters.columns + across.first;
    if (each === channels && dilation[1] === 1)  // the taps of a row lie one behind the other
      copyBits(source, pixel * each, target, tap * each, taps * each);
    else
      for (let j = 0; j < taps; j++)
        copyBits(source, (pixel + j * dilation[1]) * channels + group * each, target, (tap + j) * each, each);
  }
}

/** Bits that are set for the taps inside of the image. */
function maskOf(filters, down, across) {
  const {rows, columns, channels, words} = filters, mask = new Uint32Array(words);
  for (let tap = 0; tap < rows * columns; tap++) {
    const [i, j] = [Math.floor(tap / columns), tap % columns];
    if (i < down.first || i > down.last || j < across.first || j > across.last) continue;
    for (let bit = tap * channels; bit < (tap + 1) * channels; bit++) mask[bit >>> 5] |= 1 << (bit & 31);
  }
  return mask;
}

// --- everything else ------------------------------------------------------------------------------------------------

function pool(op, x, data, join, neutral, result) {
  const [channels, height, width] = x.size, {kernel, stride, padding} = op;
  const rows = outputSize(height, kernel[0], stride[0], padding[0]);
  const columns = outputSize(width, kernel[1], stride[1], padding[1]);
  const pooled = new result(rows * columns * channels).fill(neutral);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++)
      for (let i = 0; i < kernel[0]; i++)
        for (let j = 0; j < kernel[1]; j++) {
          const y = row * stride[0] - padding[0] + i, z = column * stride[1] - padding[1] + j;
          if (y < 0 || y >= height || z < 0 || z >= width) continue;
          const from = (y * width + z) * channels, to = (row * columns + column) * channels;
          for (let c = 0; c < channels; c++) pooled[to + c] = join(pooled[to + c], data[from + c]);
        }
  return {size: [channels, rows, columns], lattice: null, data: pooled};
}

function sumPool(op, x) {
  return pool(op, x, decoded(x), (a, b) => a + b, 0, Int32Array);
}

function maxPool(op, x) {  // codes are as ordered as what they stand for, and none is below 0
  const larger = (a, b) => (a > b ? a : b);
  return {...pool(op, x, x.data, larger, x.lattice ? 0 : -(2 ** 31), x.data.constructor), lattice: x.lattice};
}

function add(op, a, b) {
  const [p, q] = op.factors, y = decoded(b);
  return integers(a.size, decoded(a).map((value, i) => p * value + q * y[i]));
}

/** The number of thresholds (cases, T, C) that each integer reaches, or its negative where the channel flips. */
function threshold(op, x, selector, thresholds, flips) {
  const q = decoded(x), channels = op.channels, steps = op.lattice[2] - 1;
  const codes = emptyCodes(q.length, op.lattice);
  for (let i = 0, c = 0; i < q.length; i++) {
    const value = (flips[c >>> 3] >>> (c & 7)) & 1 ? -q[i] : q[i];
    let at = (selector ? selector.data[i] * steps : 0) * channels + c, code = 0;
    while (code < steps && value >= thresholds[at]) {
      code++;
      at += channels;
    }
    codes[i] = code;
    if (++c === channels) c = 0;
  }
  return {size: x.size, lattice: op.lattice, data: codes};
}

function encode(op, x) {
  const [low, stride] = op.lattice, q = decoded(x), codes = emptyCodes(q.length, op.lattice);
  for (let i = 0; i < q.length; i++) codes[i] = (q[i] - low) / stride;
  return {size: x.size, lattice: op.lattice, data: codes};
}

/** Into the order (channel, row, column), as one vector; with `back`, the other way round. */
function transposed(data, [channels, rows, columns], back = false) {
  const result = new data.constructor(data.length), pixels = rows * columns;
  for (let pixel = 0, i = 0; pixel < pixels; pixel++)
    for (let c = 0; c < channels; c++, i++)
      if (back) result[i] = data[c * pixels + pixel];
      else result[c * pixels + pixel] = data[i];
  return result;
}

function flatten(x) {
  return {size: [volume(x.size), 1, 1], lattice: x.lattice, data: transposed(x.data, x.size)};
}
