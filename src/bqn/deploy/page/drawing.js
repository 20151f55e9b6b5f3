// From strokes and pictures to the pixels of a network's input, framed as its training data were.
//
// A frame is {channels, rows, columns, box, pen, centre}: what is drawn is scaled until its longer side is `box`
// pixels, lines have the radius `pen`, and in the middle is the centre of mass ("mass") or of the box ("box").
"use strict";

const SMALLEST = 0.12;  // of the pad: what is smaller is not blown up to fill the box
const EDGE = 1.1;       // pixels over which a line fades
const FAINT = 0.25;     // contrast below which a picture counts as empty

/** Pixels of strokes, lists of points [x, y] on a pad from 0 to 1: lines of the same width whatever the scale. */
function rasterize(strokes, frame) {
  const points = strokes.flat();
  if (!points.length) return new Uint8Array(frame.rows * frame.columns);
  const [left, right] = extremes(points, ([x]) => x), [top, bottom] = extremes(points, ([, y]) => y);
  const scale = Math.max(frame.box - 2 * frame.pen, 1) / Math.max(right - left, bottom - top, SMALLEST);
  const draw = (x, y) => {
    const place = ([u, v]) => [(u - (left + right) / 2) * scale + x, (v - (top + bottom) / 2) * scale + y];
    return drawLines(strokes.map(stroke => stroke.map(place)), frame);
  };
  return centred(draw, frame);
}

/** The least and the most that is measured on a list. */
function extremes(list, measure) {
  let [least, most] = [Infinity, -Infinity];
  for (const each of list) [least, most] = [Math.min(least, measure(each)), Math.max(most, measure(each))];
  return [least, most];
}

/** An image, drawn around the middle, or moved until its centre of mass is there. */
function centred(draw, frame) {
  const x = frame.columns / 2, y = frame.rows / 2;
  let image = draw(x, y);
  if (frame.centre === "mass") {
    const [u, v] = centreOfMass(image, frame);
    image = draw(2 * x - u, 2 * y - v);
  }
  return Uint8Array.from(image, value => Math.round(255 * value));
}

function centreOfMass(image, {rows, columns}) {
  let [mass, x, y] = [0, 0, 0];
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const value = image[row * columns + column];
      mass += value;
      x += value * (column + 0.5);
      y += value * (row + 0.5);
    }
  return mass ? [x / mass, y / mass] : [columns / 2, rows / 2];
}

/** Lines in pixels, anti-aliased by the distance of each pixel's middle. */
function drawLines(lines, {rows, columns, pen}) {
  const image = new Float32Array(rows * columns), reach = pen + EDGE / 2;
  for (const line of lines)
    for (let k = 0; k < line.length; k++) {
      const [a, b] = [line[Math.max(k - 1, 0)], line[k]];
      const range = (axis, size) => [Math.max(0, Math.floor(Math.min(a[axis], b[axis]) - reach)),
                                     Math.min(size - 1, Math.ceil(Math.max(a[axis], b[axis]) + reach))];
      const [[first, last], [top, bottom]] = [range(0, columns), range(1, rows)];
      for (let row = top; row <= bottom; row++)
        for (let column = first; column <= last; column++) {
          const value = Math.min(1, (reach - distance(column + 0.5, row + 0.5, a, b)) / EDGE);
          if (value > image[row * columns + column]) image[row * columns + column] = value;
        }
    }
  return image;
}

/** From a point to a line between two others. */
function distance(x, y, [ax, ay], [bx, by]) {
  const [dx, dy] = [bx - ax, by - ay], length = dx * dx + dy * dy;
  const along = length ? Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / length)) : 0;
  return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}

// --- pictures -------------------------------------------------------------------------------------------------------

/** Pixels (channel, row, column) of a picture. One that has the input's size already is taken as it is. */
function readPicture(picture, frame) {
  const {channels, rows, columns} = frame;
  if (picture.width === columns && picture.height === rows)
    return byChannel(pixelsOf(picture, [0, 0, columns, rows], columns, rows), channels);
  if (channels > 1 || !frame.box) {
    const scale = Math.min(picture.width / columns, picture.height / rows);
    const [width, height] = [columns * scale, rows * scale];
    const middle = [(picture.width - width) / 2, (picture.height - height) / 2, width, height];
    return byChannel(shrunk(picture, middle, columns, rows), channels);
  }
  return frameInk(picture, frame);
}

/** A part [x, y, width, height] of a picture as RGBA bytes of another size. */
function pixelsOf(picture, part, columns, rows) {
  const canvas = Object.assign(document.createElement("canvas"), {width: columns, height: rows});
  const context = canvas.getContext("2d", {willReadFrequently: true});
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#fff";  // what is transparent is paper
  context.fillRect(0, 0, columns, rows);
  context.drawImage(picture, ...part, 0, 0, columns, rows);
  return context.getImageData(0, 0, columns, rows).data;
}

/** Likewise, each pixel the average of 64. */
function shrunk(picture, part, columns, rows) {
  const fine = pixelsOf(picture, part, 8 * columns, 8 * rows);
  const result = new Float32Array(4 * columns * rows);
  for (let y = 0; y < 8 * rows; y++)
    for (let x = 0; x < 8 * columns; x++)
      for (let c = 0; c < 4; c++)
        result[4 * ((y >> 3) * columns + (x >> 3)) + c] += fine[4 * (8 * y * columns + x) + c] / 64;
  return result;
}

function byChannel(rgba, channels) {
  const count = rgba.length / 4, result = new Uint8Array(channels * count);
  for (let i = 0; i < count; i++)
    if (channels === 1) result[i] = Math.round(luma(rgba, i));
    else for (let c = 0; c < channels; c++) result[c * count + i] = Math.round(rgba[4 * i + c]);
  return result;
}

const luma = (rgba, i) => 0.299 * rgba[4 * i] + 0.587 * rgba[4 * i + 1] + 0.114 * rgba[4 * i + 2];

/** What stands out from the background, be it darker or lighter, cut out and framed like strokes. */
function frameInk(picture, frame) {
  const scale = Math.min(1, 256 / Math.max(picture.width, picture.height));
  const [width, height] = [picture.width, picture.height].map(size => Math.max(1, Math.round(size * scale)));
  const rgba = pixelsOf(picture, [0, 0, picture.width, picture.height], width, height);
  const gray = Float32Array.from({length: width * height}, (_, i) => luma(rgba, i));
  const border = gray.filter((_, i) => i % width < 1 || i % width > width - 2 || i < width || i >= gray.length - width);
  const background = border.sort()[border.length >> 1];
  const ink = gray.map(value => Math.abs(value - background));
  const most = ink.reduce((a, b) => Math.max(a, b), 1);
  const inked = [];
  ink.forEach((value, i) => {
    ink[i] = Math.max(0, (value / most - FAINT) / (1 - FAINT));
    if (ink[i] > FAINT) inked.push(i);
  });
  const [left, right] = extremes(inked, i => i % width), [top, bottom] = extremes(inked, i => Math.floor(i / width));
  const step = Math.max(right - left + 1, bottom - top + 1) / frame.box;
  const sample = (x, y) => {  // the average of 8 × 8 places within a pixel
    let sum = 0;
    for (let i = 0; i < 64; i++) {
      const u = Math.floor(x + ((i & 7) / 8 + 1 / 16) * step), v = Math.floor(y + ((i >> 3) / 8 + 1 / 16) * step);
      if (u >= left && u <= right && v >= top && v <= bottom) sum += ink[v * width + u];
    }
    return sum / 64;
  };
  const draw = (x, y) => Float32Array.from({length: frame.rows * frame.columns}, (_, i) => {
    const [column, row] = [i % frame.columns, Math.floor(i / frame.columns)];
    return sample((left + right + 1) / 2 + (column - x) * step, (top + bottom + 1) / 2 + (row - y) * step);
  });
  return centred(draw, frame);
}
