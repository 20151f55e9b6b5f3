// A packed network to use: pixels or features in, integers, probabilities or moments out. As `bqn.deploy.model`.
"use strict";

class PackedModel {
  /** @param {Uint8Array} bytes the content of a packed file, which has been checked */
  constructor(bytes) {
    const {program, arrays} = readPacked(bytes);
    Object.assign(this, {program, arrays, members: program.members, classes: program.classes});
    this.kind = program.ops[0].kind;
    this.shape = program.ops[0].shape;
    this.task = program.head === "softmax" ? "classification" : "regression";
    this.filters = Array.from({length: this.members}, () => new Map());
  }

  /** An array of one member. */
  array(name, member) {
    const {shape, data} = this.arrays.get(name);
    const each = data.length / shape[0], at = shape[0] > 1 ? member * each : 0;
    return data.subarray(at, at + each);
  }

  /** Integers before the head, one array a member, of one example in the order (channel, row, column). */
  logits(example) {
    const input = this.input(example);
    return this.filters.map((_, member) => this.run(input, member));
  }

  /** The first value of the program. */
  input(example) {
    const shape = this.shape;
    const size = [shape[0], shape.length > 2 ? shape[1] : 1, shape.length > 1 ? shape.at(-1) : 1];
    if (example.length !== volume(size)) throw new Error(`expected ${volume(size)} numbers, got ${example.length}`);
    if (this.kind === "pixels")
      return {size, lattice: PIXELS, data: transposed(Uint8Array.from(example), size, true)};
    return integers(size, transposed(this.standardized(example), size, true));
  }

  /** Features in units of 2^-24, standardized in float32 as in training. */
  standardized(example) {
    const scaled = this.arrays.has("input.mean");
    const mean = scaled && this.array("input.mean", 0), std = scaled && this.array("input.std", 0);
    return Float64Array.from(example, (number, i) => {
      let value = Math.fround(number);
      if (scaled) value = Math.fround(Math.fround(value - mean[i]) / std[i]);
      if (!(Math.abs(value) < FEATURE_LIMIT)) throw new Error(`number ${i + 1} is too far from what was learnt`);
      return roundEven(value * 2 ** FEATURE_BITS);
    });
  }

  run(input, member) {
    const values = new Map();
    for (const op of this.program.ops) values.set(op.name, op.op === "Input" ? input : this.step(op, values, member));
    return decoded(values.get(this.program.output));
  }

  step(op, values, member) {
    const x = values.get(op.source);
    switch (op.op) {
      case "Linear": return linear(op, x, this.prepared(op, member));
      case "Conv2d": return conv2d(op, x, this.prepared(op, member));
      case "SumPool": return sumPool(op, x);
      case "MaxPool": return maxPool(op, x);
      case "Add": return add(op, values.get(op.sources[0]), values.get(op.sources[1]));
      case "Threshold": {
        const [levels, flips] = ["thresholds", "flips"].map(part => this.array(`${op.name}.${part}`, member));
        return threshold(op, x, op.selector ? values.get(op.selector) : null, levels, flips);
      }
      case "Encode": return encode(op, x);
      case "Flatten": return flatten(x);
      default: throw new Error(`unknown operation ${op.op}`);
    }
  }

  /** The weights of a product; made once. */
  prepared(op, member) {
    const made = this.filters[member];
    if (!made.has(op.name)) {
      const shape = op.op === "Linear" ? [op.out_features, 1, 1, op.in_features]
        : [op.out_channels, ...op.kernel, op.in_channels / op.groups];
      const bytes = this.array(`${op.name}.weight`, member), planes = planesOf(op.weight), each = bytes.length / planes;
      const streams = Array.from({length: planes}, (_, q) => {
        const padded = new Uint8Array(Math.ceil(each / 4) * 4);
        padded.set(bytes.subarray(q * each, (q + 1) * each));
        return new Uint32Array(padded.buffer);
      });
      made.set(op.name, new Filters(op, streams, shape, op.bias ? this.array(`${op.name}.bias`, member) : null));
    }
    return made.get(op.name);
  }

  /** All that can be said about one example. */
  predict(example) {
    const logits = this.logits(example);
    return this.task === "classification" ? this.classify(logits) : this.regress(logits);
  }

  /** Class probabilities of the members and on average; entropies in nats. */
  classify(logits) {
    const members = logits.map((each, member) => {
      const scale = this.program.step / Math.exp(this.array("head.log_scale", member)[0]);
      return softmax(Array.from(each, value => scale * value));
    });
    const probabilities = members[0].map((_, k) => average(members.map(each => each[k])));
    const total = entropy(probabilities), within = average(members.map(entropy));
    const uncertainty = {total, aleatoric: Math.min(within, total), epistemic: Math.max(total - within, 0)};
    return {logits, members, probabilities, uncertainty};
  }

  /** Mean and variance of each output, by the members and of their mixture, in the units of the targets. */
  regress(logits) {
    const noise = this.array("head.log_noise", 0).length, scaled = this.arrays.has("target.mean");
    const unit = i => (scaled ? this.array("target.std", 0)[i] : 1);
    const members = logits.map((each, member) => {
      const weight = this.array("head.weight", member), logNoise = this.array("head.log_noise", member);
      return Array.from({length: noise}, (_, i) => {
        let mean = 0;
        each.forEach((value, j) => (mean += this.program.step * value * weight[i * each.length + j]));
        return {mean: mean * unit(i) + (scaled ? this.array("target.mean", 0)[i] : 0),
                var: Math.exp(logNoise[i]) * unit(i) ** 2};
      });
    });
    const moments = members[0].map((_, i) => {
      const mean = average(members.map(each => each[i].mean));
      const aleatoric = average(members.map(each => each[i].var));
      const epistemic = average(members.map(each => (each[i].mean - mean) ** 2));
      return {mean, var: aleatoric + epistemic, aleatoric, epistemic};
    });
    return {logits, members, moments};
  }
}

const indexOfMost = numbers => numbers.indexOf(Math.max(...numbers));
const average = numbers => numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
const entropy = probs => -probs.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);

function softmax(logits) {
  const most = Math.max(...logits), shifted = logits.map(value => Math.exp(value - most));
  const sum = shifted.reduce((a, b) => a + b, 0);
  return shifted.map(value => value / sum);
}

/** The nearest integer, the even one of two. */
function roundEven(value) {
  const floor = Math.floor(value), rest = value - floor;
  if (rest !== 0.5) return Math.round(value);
  return floor % 2 === 0 ? floor : floor + 1;
}
