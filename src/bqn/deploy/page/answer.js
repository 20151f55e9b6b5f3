// Bars, votes and doubt: how an answer looks.
"use strict";

const MOST_BARS = 12;   // classes that all have a bar in their order; of more, the most probable ones have
const MOST_CHIPS = 24;  // members that each have a chip; of more, equal votes share one
const MOST_GROUPS = 8;  // such votes

/** Bars of class probabilities with a tick for each member; below them votes and doubt. */
function showClasses(prediction) {
  const count = facts.names.length, ticks = model.members > 1 ? model.members : 0;
  const chances = prediction?.probabilities ?? Array(count).fill(0);
  const ranked = chances.map((_, k) => k).sort((a, b) => chances[b] - chances[a]);
  const shown = count <= MOST_BARS ? chances.map((_, k) => k) : ranked.slice(0, MOST_BARS - 2);
  const rows = bars(shown.length, ticks);
  shown.forEach((k, at) => {
    const {row, name, fill, marks, number} = rows[at];
    row.classList.toggle("best", Boolean(prediction) && k === ranked[0]);
    name.textContent = name.title = facts.names[k];
    fill.style.transform = `scaleX(${chances[k]})`;
    number.textContent = prediction ? percent(chances[k]) : "";
    marks.forEach((mark, m) => {
      const chance = prediction?.members[m][k] ?? 0;
      mark.hidden = chance < 0.005;
      mark.style.left = `calc(${chance} * (100% - 2px))`;
    });
  });
  showVotes(prediction);
  const {aleatoric = 0, epistemic = 0} = prediction?.uncertainty ?? {};
  showDoubt(aleatoric, epistemic, Math.log(count), " nats");
}

let madeBars = null;

/** Rows of bars; made once. */
function bars(count, ticks) {
  if (madeBars) return madeBars;
  madeBars = Array.from({length: count}, () => {
    const [name, fill, number] = [make("span", {className: "name"}), make("i", {className: "fill"}), make("b")];
    const marks = Array.from({length: Math.min(ticks, 64)}, () => make("i", {className: "mark"}));
    const row = make("li", {}, name, make("span", {className: "track"}, fill, ...marks), number);
    return {row, name, fill, marks, number};
  });
  find("result").append(make("ol", {id: "bars"}, ...madeBars.map(each => each.row)));
  const note = "Bars are the average, thin marks the single members.";
  if (ticks) find("result").append(make("p", {className: "note", textContent: note}));
  return madeBars;
}

function showVotes(prediction) {
  if (model.members === 1) return;
  const votes = prediction ? prediction.members.map(indexOfMost) : Array(model.members).fill(null);
  const winner = prediction && indexOfMost(prediction.probabilities);
  const side = k => (k === null ? "" : k === winner ? "with" : "against");
  const chip = (k, text) => make("li", {className: side(k), textContent: text});
  let chips = votes.map(k => chip(k, k === null ? "·" : facts.names[k]));
  if (votes.length > MOST_CHIPS) {
    const counts = new Map();
    for (const k of votes) counts.set(k, (counts.get(k) ?? 0) + 1);
    const groups = [...counts].sort((a, b) => b[1] - a[1]), rest = groups.splice(MOST_GROUPS);
    chips = groups.map(([k, n]) => chip(k, `${n} × ${k === null ? "·" : facts.names[k]}`));
    if (rest.length) chips.push(chip(null, `${rest.reduce((sum, [, n]) => sum + n, 0)} others`));
  }
  find("votes").replaceChildren(
    make("h3", {textContent: `Votes of the ${several(model.members, "member")}`}), make("ol", {}, ...chips));
}

/** A bar of doubt in two parts, out of the most that is possible. */
function showDoubt(aleatoric, epistemic, most, unit) {
  const alone = model.members === 1;
  const part = (name, value) => make("i", {className: name, style: {width: `${Math.min(100, (100 * value) / most)}%`}});
  const entry = (name, value, words) => make("div", {className: name},
    make("dt", {}, make("i"), words), make("dd", {textContent: `${value.toFixed(2)}${unit}`}));
  const shared = alone ? "seen in the input (aleatoric)" : "seen by every member (aleatoric)";
  find("doubt").replaceChildren(
    make("h3", {textContent: "Uncertainty"}),
    make("div", {className: "track"}, part("aleatoric", aleatoric), part("epistemic", epistemic)),
    make("dl", {},
      entry("aleatoric", aleatoric, shared),
      ...(alone ? [] : [entry("epistemic", epistemic, "members disagree (epistemic)")])));
}

// --- regression -----------------------------------------------------------------------------------------------------

/** For each output the density of the prediction, with a tick for each member. */
function showMoments(prediction) {
  if (!prediction) {
    find("result").replaceChildren();
    find("doubt").replaceChildren();
    return;
  }
  const parts = prediction.moments.map((moment, i) => {
    const spread = Math.sqrt(moment.var);
    const words = `about 95 % between ${shortly(moment.mean - 2 * spread)} and ${shortly(moment.mean + 2 * spread)}`;
    const several = prediction.moments.length > 1;
    const title = several ? `Output ${i + 1}: ${shortly(moment.mean)} ± ${shortly(spread)}, ` : "";
    return make("figure", {className: "density"}, density(prediction.members.map(each => each[i]), moment, spread),
                make("figcaption", {textContent: title + words}));
  });
  find("result").replaceChildren(...parts);
  const {aleatoric, epistemic, var: total} = prediction.moments[0];
  showDoubt(aleatoric / total, epistemic / total, 1, " of the variance");
}

function density(members, {mean}, spread) {
  const [width, height, from] = [400, 110, mean - 4 * spread];
  const x = value => ((value - from) / (8 * spread)) * width;
  const bell = (value, each) => Math.exp(-((value - each.mean) ** 2) / (2 * each.var)) / Math.sqrt(each.var);
  const curve = Array.from({length: 161}, (_, k) => from + (8 * spread * k) / 160)
    .map(value => [x(value), average(members.map(each => bell(value, each)))]);
  const most = Math.max(...curve.map(point => point[1]));
  const base = height - 18, y = value => base - (value / most) * (base - 10);
  const path = curve.map(([u, v]) => `${u.toFixed(1)},${y(v).toFixed(1)}`).join(" L");
  const drawn = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const svg = drawn("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "density of the prediction"});
  svg.append(drawn("path", {class: "area", d: `M${path} L${width},${base} L0,${base} Z`}),
             drawn("path", {class: "curve", d: `M${path}`}),
             ...members.map(each => drawn("path", {class: "tick", d: `M${x(each.mean)},${base + 2} v12`})));
  return svg;
}

// --- facts ----------------------------------------------------------------------------------------------------------

function setUpFacts() {
  find("lead").textContent = facts.lead;
  const fact = ([label, value]) =>
    make("div", {}, make("dt", {textContent: label}),
         make("dd", {id: `fact-${label.split(" ")[0]}`, textContent: value}));
  find("facts").append(...[...facts.facts, ["time per answer", "–"]].map(fact));
  const cells = (kind, texts) => make("tr", {}, ...texts.map(text => make(kind, {textContent: text})));
  find("layers").append(make("thead", {}, cells("th", facts.columns)),
                        make("tbody", {}, ...facts.layers.map(row => cells("td", row))));
}
