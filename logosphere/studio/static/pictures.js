const SPACE = "http://www.w3.org/2000/svg";
const LEFT = 64;  // room for numbers of six figures in the larger letters of a phone

function drawn(name, attributes, text) {
  const part = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
  if (text !== undefined) part.textContent = text;
  return part;
}

// Bits against steps: training thin, validation strong.
export function curves(place, content) {
  const points = [...content.val, ...content.train];
  if (points.length < 2) { place.textContent = "This model has no training curve."; return; }
  const width = 560, height = 240, left = LEFT, foot = height - 26;
  const xs = points.map(p => p[0]), last = Math.max(...xs), first = Math.min(...xs);
  const ys = points.map(p => p[1]).sort((a, b) => a - b), low = ys[0], high = ys[Math.floor(0.98 * (ys.length - 1))];
  const x = v => left + (v - first) / (last - first || 1) * (width - left - 10);
  const y = v => foot - (Math.min(v, high) - low) / (high - low || 1) * (foot - 12);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "training curves" });
  for (let k = 0; k <= 4; k++) {
    const v = low + (high - low) * k / 4;
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - 10, y1: y(v), y2: y(v) }));
    svg.append(drawn("text", { x: left - 7, y: y(v) + 4, "text-anchor": "end" }, v.toFixed(2)));
  }
  for (const name of ["train", "val"])
    svg.append(drawn("polyline", { class: name, points: content[name].map(p => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") }));
  const end = content.val.at(-1);
  const label = `${last.toLocaleString()} steps` + (end ? `, ${end[1].toFixed(3)} bits on held-out text` : "");
  svg.append(drawn("text", { x: width - 10, y: height - 6, "text-anchor": "end" }, label));
  place.replaceChildren(svg);
}

// Bits in each stretch of time: level steps with error bars, whose mean is the bound.
export function overTime(place, slices, done) {
  if (!slices.length) return;
  const width = 560, height = 240, left = LEFT, foot = height - 40, high = 1.12 * Math.max(...slices.map(s => s.bits + s.error));
  const x = v => left + v * (width - left - 10), y = v => foot - Math.max(0, v) / high * (foot - 12);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "the bound over time" });
  for (let k = 0; k <= 4; k++) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - 10, y1: y(high * k / 4), y2: y(high * k / 4) }));
    svg.append(drawn("text", { x: left - 7, y: y(high * k / 4) + 4, "text-anchor": "end" }, (high * k / 4).toFixed(2)));
  }
  svg.append(drawn("polyline", { class: "val", points: slices.map(s => `${x(s.low)},${y(s.bits)} ${x(s.high)},${y(s.bits)}`).join(" ") }));
  for (const s of slices) {
    const middle = x((s.low + s.high) / 2);
    svg.append(drawn("line", { class: "error", x1: middle, x2: middle, y1: y(s.bits - s.error), y2: y(s.bits + s.error) }));
  }
  const sign = { bound: "≤", surrogate: "~" }[done?.kind];
  svg.append(drawn("text", { x: left, y: foot + 16 }, "data"), drawn("text", { x: width - 10, y: foot + 16, "text-anchor": "end" }, "noise"));
  svg.append(drawn("text", { x: width - 10, y: height - 6, "text-anchor": "end" },
    done ? `mean ${sign} ${done.bits.toFixed(3)} bits per token on ${done.sequences} held-out texts` : "measuring …"));
  place.replaceChildren(svg);
}

// States on the sphere: the mask in the middle, the tokens around the rim, each state drawn with the path it has come.
export function disc(canvas, moments, at, text, alphabet) {
  const places = moments[at]?.places;
  canvas.hidden = !places;
  if (!places) return;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const size = canvas.width, scale = 0.43 * size, middle = size / 2;
  const colour = name => style.getPropertyValue(name).trim();
  pen.clearRect(0, 0, size, size);
  pen.lineWidth = 2;
  pen.strokeStyle = colour("--line");
  pen.beginPath(); pen.arc(middle, middle, scale, 0, 2 * Math.PI); pen.stroke();
  pen.fillStyle = colour("--soft");
  pen.font = "22px ui-monospace, Menlo, Consolas, monospace"; pen.textAlign = "center"; pen.textBaseline = "middle";
  alphabet.forEach((symbol, k) => {
    const angle = 2 * Math.PI * k / alphabet.length, out = scale + 20;
    pen.fillText(symbol === " " ? "␣" : symbol, middle + out * Math.cos(angle), middle + out * Math.sin(angle));
  });
  places[text].forEach(([px, py], i) => {
    pen.strokeStyle = pen.fillStyle = colour(`--s${i % 7}`);
    pen.globalAlpha = 0.3;
    pen.beginPath();
    for (let k = Math.max(0, at - 5); k <= at; k++) {
      const [qx, qy] = moments[k].places[text][i];
      pen.lineTo(middle + scale * qx, middle + scale * qy);
    }
    pen.stroke();
    pen.globalAlpha = 0.9;
    pen.beginPath(); pen.arc(middle + scale * px, middle + scale * py, 5, 0, 2 * Math.PI); pen.fill();
  });
  pen.globalAlpha = 1;
}
