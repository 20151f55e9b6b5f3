// The page: what is drawn, picked or typed goes through the network, and what it answers is shown.
"use strict";

const find = id => document.getElementById(id);
const facts = JSON.parse(find("page-facts").textContent);
const load = text => new PackedModel(Uint8Array.from(atob(text), letter => letter.charCodeAt(0)));
const model = load(find("packed").textContent);

/** An element with text or children; `attributes` are properties, `style` an object of CSS properties. */
function make(tag, {style = {}, ...attributes} = {}, ...children) {
  const element = Object.assign(document.createElement(tag), attributes);
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, value);
  element.append(...children);
  return element;
}

// --- what is entered ------------------------------------------------------------------------------------------------

const frame = facts.frame;
const pad = {strokes: [], picture: null, pointer: null};

function setUpPicture() {
  const ink = find("ink"), digits = facts.names.every((name, k) => name === String(k));
  const thing = facts.draw ? (digits ? "Draw a digit" : "Draw here") : "Drop a picture here, or pick one";
  find("hint").textContent = thing;
  ink.setAttribute("aria-label", facts.draw ? "Area to draw on" : "The picture");
  find("undo").hidden = !facts.draw;
  find("pad").style.setProperty("aspect-ratio", `${frame.columns} / ${frame.rows}`);
  Object.assign(find("preview"), {width: frame.columns, height: frame.rows});
  if (facts.draw) setUpPen(ink);
  find("clear").onclick = clear;
  find("undo").onclick = () => { pad.strokes.pop(); pad.picture = null; refresh(); };
  find("file").onchange = event => { usePicture(event.target.files[0]); event.target.value = ""; };
  addEventListener("keydown", event => { if (event.key === "Escape") clear(); });
  addEventListener("paste", event => usePicture([...event.clipboardData.files][0]));
  for (const kind of ["dragover", "dragleave", "drop"])
    addEventListener(kind, event => {
      event.preventDefault();
      find("pad").classList.toggle("over", kind === "dragover");
      if (kind === "drop") usePicture(event.dataTransfer.files[0]);
    });
  new ResizeObserver(paint).observe(ink);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
}

function setUpPen(ink) {
  const place = event => {
    const box = ink.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.width];
  };
  ink.onpointerdown = event => {
    if (!event.isPrimary || event.button > 0) return;
    event.preventDefault();
    ink.setPointerCapture(event.pointerId);
    Object.assign(pad, {pointer: event.pointerId, picture: null});
    pad.strokes.push([place(event)]);
    refresh();
  };
  ink.onpointermove = event => {
    if (event.pointerId !== pad.pointer) return;
    const moves = event.getCoalescedEvents?.() ?? [];
    pad.strokes.at(-1).push(...(moves.length ? moves : [event]).map(place));
    refresh();
  };
  ink.onpointerup = ink.onpointercancel = () => { pad.pointer = null; };
}

function clear() {
  Object.assign(pad, {strokes: [], picture: null, pointer: null});
  complain("");
  refresh();
}

async function usePicture(file) {
  if (!file) return;
  try {
    Object.assign(pad, {picture: await createImageBitmap(file), strokes: []});
    complain("");
  } catch {
    complain(`${file.name || "This file"} is no picture that this browser can read.`);
  }
  refresh();
}

/** The drawing, as sharp as the screen is. */
function paint() {
  const ink = find("ink"), context = ink.getContext("2d"), sharp = devicePixelRatio || 1;
  const [width, height] = [ink.clientWidth, ink.clientHeight];
  Object.assign(ink, {width: Math.round(width * sharp), height: Math.round(height * sharp)});
  context.scale(sharp, sharp);
  if (pad.picture) {
    const scale = Math.min(width / pad.picture.width, height / pad.picture.height);
    const [w, h] = [pad.picture.width * scale, pad.picture.height * scale];
    context.imageSmoothingEnabled = scale < 4;
    context.drawImage(pad.picture, (width - w) / 2, (height - h) / 2, w, h);
  }
  Object.assign(context, {lineWidth: width * 0.055, lineCap: "round", lineJoin: "round",
                          strokeStyle: getComputedStyle(ink).color});
  for (const stroke of pad.strokes) {
    context.beginPath();
    stroke.forEach(([x, y], k) => context[k ? "lineTo" : "moveTo"](x * width, y * width));
    if (stroke.length === 1) context.lineTo(stroke[0][0] * width, stroke[0][1] * width);
    context.stroke();
  }
  find("hint").classList.toggle("gone", pad.strokes.length > 0 || pad.picture !== null);
}

/** What the network sees. */
function paintPreview(pixels) {
  const context = find("preview").getContext("2d"), count = frame.rows * frame.columns;
  const image = context.createImageData(frame.columns, frame.rows);
  for (let i = 0; i < count; i++)
    for (let c = 0; c < 4; c++)
      image.data[4 * i + c] = c === 3 ? 255 : pixels ? pixels[(frame.channels === 1 ? 0 : c) * count + i] : 0;
  context.putImageData(image, 0, 0);
}

function setUpForm() {
  const fields = facts.fields.map(({label, value, step}) => {
    const input = make("input", {type: "text", inputMode: "decimal", value: Number(value.toPrecision(4)), name: label});
    input.dataset.step = step;
    return input;
  });
  find("numbers").append(...fields.map(input => make("label", {}, make("span", {textContent: input.name}), input)));
  find("numbers").oninput = refresh;
  find("numbers").onsubmit = event => event.preventDefault();
  find("numbers").addEventListener("paste", event => {  // a row of a table fills as many fields as it has numbers
    const numbers = event.clipboardData.getData("text").trim().split(/[\s,;]+/);
    if (numbers.length < 2) return;
    event.preventDefault();
    const start = fields.indexOf(event.target);
    numbers.forEach((text, k) => { if (fields[start + k]) fields[start + k].value = text; });
    refresh();
  });
  find("numbers").addEventListener("keydown", event => {
    const direction = {ArrowUp: 1, ArrowDown: -1}[event.key], input = event.target;
    if (!direction || !Number.isFinite(Number(input.value))) return;
    event.preventDefault();
    input.value = Number((Number(input.value) + direction * input.dataset.step).toPrecision(6));
    refresh();
  });
}

/** The numbers of the form, or null if one of them is none. */
function readForm() {
  const inputs = [...find("numbers").querySelectorAll("input")];
  const fits = value => value.trim() !== "" && Number.isFinite(Number(value))
    && (model.kind !== "pixels" || (Number.isInteger(Number(value)) && value >= 0 && value <= 255));
  for (const input of inputs) input.classList.toggle("wrong", !fits(input.value));
  const wrong = inputs.find(input => !fits(input.value));
  const wanted = model.kind === "pixels" ? "an integer from 0 to 255" : "a number";
  complain(wrong ? `${wrong.name}: “${wrong.value}” is not ${wanted}.` : "");
  return wrong ? null : inputs.map(input => Number(input.value));
}

function complain(text) {
  find("trouble").textContent = text;
}

/** What was entered as the network's input, or null if that is nothing yet. */
function example() {
  if (!frame) return readForm();
  if (pad.picture) return readPicture(pad.picture, frame);
  return pad.strokes.length ? rasterize(pad.strokes, frame) : null;
}

// --- what is answered -----------------------------------------------------------------------------------------------

const times = [];
let waiting = false;

/** Predict and show once before the next frame is drawn, however often this is called. */
function refresh() {
  if (!waiting) requestAnimationFrame(() => { waiting = false; update(); });
  waiting = true;
}

function update() {
  const input = example();
  if (frame) {
    paint();
    paintPreview(input);
  }
  try {
    show(input && timed(input));
  } catch (error) {
    complain(`${error.message}.`);
    show(null);
  }
}

function timed(input) {
  const start = performance.now(), prediction = model.predict(input);
  times.push(performance.now() - start);
  if (times.length > 15) times.shift();
  return prediction;
}

function show(prediction) {
  document.body.classList.toggle("empty", !prediction);
  const classes = model.task === "classification";
  const said = !prediction ? {headline: facts.draw ? "Waiting for a stroke" : "Waiting for input", detail: " "}
    : classes ? verdict(prediction, facts.names)
      : estimate(prediction.moments[0], model.members);
  if (find("headline").textContent !== said.headline) find("headline").textContent = said.headline;
  find("detail").textContent = said.detail;
  if (classes) showClasses(prediction);
  else showMoments(prediction);
  const sorted = [...times].sort((a, b) => a - b), middle = sorted[sorted.length >> 1];
  find("fact-time").textContent = times.length ? `${middle < 10 ? middle.toFixed(1) : Math.round(middle)} ms` : "–";
}

window.bqn = {
  model, load, rasterize,
  logits: x => model.logits(x).map(each => Array.from(each)),
  predict: x => model.predict(x),
  probabilities: x => model.predict(x).probabilities,
};

setUpFacts();
if (frame) setUpPicture();
else setUpForm();
find(frame ? "numbers" : "picture").remove();
update();
// The weights are made ready, and the browser has compiled the code, before the first stroke.
if (frame) setTimeout(() => model.logits(new Uint8Array(frame.channels * frame.rows * frame.columns)));
