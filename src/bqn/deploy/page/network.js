// The runtime: the bytes of a packed file in, integers out. It computes what `bqn.deploy.runtime` computes, for one
// example at a time, by and plus popcount on words of 32 bits.
//
// A value is {size: [channels, rows, columns], lattice, data}. Data lie in the order (row, column, channel): codes where
// there is a lattice [low, stride, levels], of which code k stands for low + stride * k, and integers elsewhere.
// The bits of a plane are one dense stream in that order, the least significant bit of a word first.
"use strict";

const FEATURE_BITS = 24;
const FEATURE_LIMIT = 4096;
const WIDE_MAX = 2 ** 53;
const PIXELS = [-255, 2, 256];

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

/** Bits that are set in a stretch of x and in a stretch of w. */
function countCommon(x, xStart, w, wStart, words) {
  let total = 0;
  for (let begin = 0; begin < words; begin += 31) {  // as many words as bytes can count: 31 * 8 < 256
    const end = Math.min(words, begin + 31);
    let bytes = 0;
    for (let i = begin; i < end; i++) {
      let v = x[xStart + i] & w[wStart + i];
      v -= (v >>> 1) & 0x55555555;
      v = (v & 0x33333333) + ((v >>> 2) & 0x33333333);
      bytes += (v + (v >>> 4)) & 0x0f0f0f0f;
      bytes |= 0;
    }
    const pairs = (bytes & 0x00ff00ff) + ((bytes >>> 8) & 0x00ff00ff);
    total += (pairs & 0xffff) + (pairs >>> 16);
  }
  return total;
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
    Object.assign(this, {op, outputs, rows, columns, channels, bias});
    this.count = rows * columns * channels;
    this.words = wordsFor(this.count);
    this.planes = weights.map(stream => {
      const aligned = new Uint32Array(outputs * this.words);
      for (let o = 0; o < outputs; o++) copyBits(stream, o * this.count, aligned, o * this.words * 32, this.count);
      return aligned;
    });
    this.sums = new Map();
  }

  /** For each filter the sum of its weights where `mask`, a stream of bits, is set; `key` names the mask. */
  sumsInside(key, mask) {
    if (!this.sums.has(key)) {
      const [low, stride] = this.op.weight;
      const inside = countCommon(mask, 0, mask, 0, this.words);
      const sums = new Float64Array(this.outputs).fill(low * inside);
      this.planes.forEach((plane, q) => {
        for (let o = 0; o < this.outputs; o++)
          sums[o] += stride * 2 ** q * countCommon(mask, 0, plane, o * this.words, this.words);
      });
      this.sums.set(key, sums);
    }
    return this.sums.get(key);
  }

  /** Products of one window, given as streams of bits, with the filters from `first` to `last`: into `result` at `at`. */
  dot(window, lattice, inside, first, last, result, at) {
    const [a, b] = lattice, [c, d] = this.op.weight, words = this.words;
    let codes = 0;
    window.forEach((plane, p) => (codes += 2 ** p * countCommon(plane, 0, plane, 0, words)));
    for (let o = first; o < last; o++) {
      let common = 0;
      for (let p = 0; p < window.length; p++)
        for (let q = 0; q < this.planes.length; q++)
          common += countCommon(window[p], 0, this.planes[q], o * words, words) * 2 ** (p + q);
      result[at + o] = a * inside[o] + b * c * codes + b * d * common + (this.bias ? this.bias[o] : 0);
    }
  }
}

function linear(op, x, filters) {
  const result = new (x.lattice ? Int32Array : Float64Array)(op.out_features);
  if (x.lattice) {
    const whole = new Uint32Array(filters.words).fill(-1);
    if (filters.count & 31) whole[filters.words - 1] = (1 << (filters.count & 31)) - 1;
    filters.dot(bitsOf(x), x.lattice, filters.sumsInside("all", whole), 0, filters.outputs, result, 0);
  } else {  // real-valued features: integers below 2^53, whose sums are exact
    const [low, stride] = op.weight;
    for (let o = 0; o < op.out_features; o++) {
      let total = filters.bias ? filters.bias[o] : 0;
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
  const [channels, height, width] = x.size, {groups, stride, padding, dilation} = op;
  const rows = outputSize(height, filters.rows, stride[0], padding[0], dilation[0]);
  const columns = outputSize(width, filters.columns, stride[1], padding[1], dilation[1]);
  const result = new Int32Array(rows * columns * filters.outputs);
  const streams = bitsOf(x), each = filters.channels, perGroup = filters.outputs / groups;
  const window = streams.map(() => new Uint32Array(filters.words)), mask = new Uint32Array(filters.words);
  const ones = new Uint32Array(wordsFor(filters.columns * each)).fill(-1);
  const joined = groups === 1 && dilation[1] === 1;  // the taps of a row lie one behind the other
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++)
      for (let group = 0; group < groups; group++) {
        for (const stream of window) stream.fill(0);
        mask.fill(0);
        const key = gather((pixel, tap, taps) => {
          for (let p = 0; p < streams.length; p++)
            copyBits(streams[p], pixel * channels + group * each, window[p], tap * each, taps * each);
          copyBits(ones, 0, mask, tap * each, taps * each);
        }, row, column);
        const inside = filters.sumsInside(key, mask);
        const at = (row * columns + column) * filters.outputs;
        filters.dot(window, x.lattice, inside, group * perGroup, (group + 1) * perGroup, result, at);
      }
  return integers([filters.outputs, rows, columns], result);

  /** Call `take(pixel, tap, taps)` for all taps of a window that lie inside, in runs; return a name of their pattern. */
  function gather(take, row, column) {
    const left = column * stride[1] - padding[1], step = dilation[1];
    const first = left < 0 ? Math.ceil(-left / step) : 0;
    const last = Math.min(filters.columns - 1, Math.floor((width - 1 - left) / step));
    let top = filters.rows, bottom = -1;
    for (let i = 0; i < filters.rows; i++) {
      const y = row * stride[0] - padding[0] + i * dilation[0];
      if (y < 0 || y >= height) continue;
      top = Math.min(top, i);
      bottom = i;
      if (first > last) continue;
      if (joined) take(y * width + left + first, i * filters.columns + first, last - first + 1);
      else for (let j = first; j <= last; j++) take(y * width + left + j * step, i * filters.columns + j, 1);
    }
    return `${top} ${bottom} ${first} ${last}`;
  }
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
