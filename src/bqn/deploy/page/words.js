// What a prediction means, in plain words.
"use strict";

const percent = p => `${(100 * p).toFixed(p >= 0.0005 && p < 0.0995 ? 1 : 0)} %`;
const several = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** A number to read: four significant digits. */
const shortly = value => value.toLocaleString("en", {maximumSignificantDigits: 4}).replace("-", "−");

/** A name that fits into a line. */
const brief = name => (name?.length > 28 ? `${name.slice(0, 27)}…` : name);

/** The headline and what to say about it. */
function verdict({probabilities, members, uncertainty}, names) {
  const order = probabilities.map((_, k) => k).sort((a, b) => probabilities[b] - probabilities[a]);
  const [first, second] = order, [p, q] = [probabilities[first], probabilities[second] ?? 0];
  return {
    headline: headline(p, q, brief(names[first]), brief(names[second])),
    detail: reason(members, uncertainty, first, p, brief(names[first])),
  };
}

function headline(p, q, first, second) {
  if (p >= 0.97) return `Sure: ${first}`;
  if (p >= 0.8) return `Quite sure: ${first}`;
  if (p < 0.35) return `No idea, perhaps ${first}`;
  if (p + q >= 0.75 && q >= 0.6 * p) return `Torn between ${first} and ${second}`;
  return p >= 0.6 ? `Probably ${first}` : `Perhaps ${first}, or ${second}`;
}

function reason(members, {total, aleatoric, epistemic}, first, p, name) {
  const votes = members.filter(each => indexOfMost(each) === first).length;
  if (members.length === 1)
    return p >= 0.8 ? "One network, which cannot disagree with itself: pack several to see doubt."
      : "The network finds more than one answer in it.";
  if (total < 0.15) return `All ${several(members.length, "member")} say the same, without much doubt.`;
  const agree = `${votes === members.length ? "All" : `${votes} of ${members.length}`} members say ${name}`;
  if (epistemic > aleatoric) return `${agree}, but they disagree on how likely it is: they have seen little like this.`;
  if (epistemic > 0.35 * total) return `${agree}. Partly the input is ambiguous, partly the members disagree.`;
  return `${agree}. The doubt is in the input itself: each member sees more than one answer.`;
}

/** The same for a regression with one output. */
function estimate({mean, var: variance, aleatoric, epistemic}, count) {
  const spread = Math.sqrt(variance);
  const detail = count === 1 ? "The network's own estimate of the noise; pack several networks to see doubt."
    : epistemic > aleatoric ? "Most of the spread is disagreement between the members: they have seen little like this."
      : "Most of the spread is noise that every member expects.";
  return {headline: `${shortly(mean)} ± ${shortly(spread)}`, detail};
}
