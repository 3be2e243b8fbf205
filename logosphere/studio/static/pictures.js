const SPACE = "http://www.w3.org/2000/svg";
const LEFT = 64;  // room for numbers of six figures in the larger letters of a phone

function createSvg(name, attributes, text) {
  const part = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
  if (text !== undefined) part.textContent = text;
  return part;
}

const WIDTH = 560, HEIGHT = 260, HEAD = 40, FOOT = HEIGHT - 44;

// A plot with round numbers at the left, its title above, and both ends of the x axis and a remark below.
function createFrame(label, title, low, high, ends, remark) {
  const svg = createSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  const y = v => FOOT - (Math.min(Math.max(v, low), high) - low) / (high - low || 1) * (FOOT - HEAD);
  const rough = (high - low || 1) / 4, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(k => k * size).find(s => s >= rough), places = Math.max(0, -Math.floor(Math.log10(step)));
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9; v += step) {
    svg.append(createSvg("line", { class: "grid", x1: LEFT, x2: WIDTH - 10, y1: y(v), y2: y(v) }));
    svg.append(createSvg("text", { x: LEFT - 7, y: y(v) + 4, "text-anchor": "end" }, v.toFixed(places)));
  }
  svg.append(createSvg("text", { x: 10, y: 20 }, title));
  svg.append(createSvg("text", { x: LEFT, y: FOOT + 18 }, ends[0]), createSvg("text", { x: WIDTH - 10, y: FOOT + 18, "text-anchor": "end" }, ends[1]));
  svg.append(createSvg("text", { x: WIDTH - 10, y: HEIGHT - 6, "text-anchor": "end" }, remark));
  return { svg, y };
}

const SIGN = { exact: "=", bound: "≤", surrogate: "~" };
export const formatFigure = ({ bits, error, kind, kind_and_path, unit }) => `${SIGN[kind]} ${bits.toFixed(4)}${error ? ` ± ${error.toFixed(4)}` : ""} bits per ${unit} (${kind_and_path})`;

// Bits against steps: training thin, validation strong, with ± 1 s.e.
export function drawCurves(place, content, { unit, figure }) {
  const points = [...content.val, ...content.train];
  if (points.length < 2) { place.textContent = "There is no curve yet."; return; }
  const xs = points.map(p => p[0]), last = Math.max(...xs), first = Math.min(...xs);
  const ys = points.map(p => p[1]).sort((a, b) => a - b), low = ys[0];
  const high = Math.max(ys[Math.floor((ys.length < 50 ? 1 : 0.9) * (ys.length - 1))], ...content.val.map(p => p[1]));  // the loss is high at the start
  const x = v => LEFT + (v - first) / (last - first || 1) * (WIDTH - LEFT - 10);
  const end = content.val.at(-1), sign = SIGN[figure?.kind] ?? "";
  const remark = end ? `${sign} ${end[1].toFixed(4)}${end[2] ? ` ± ${end[2].toFixed(4)}` : ""} on validation text at step ${end[0].toLocaleString()}`.trim() : "";
  const ends = [Math.round(first).toLocaleString(), `${Math.round(last).toLocaleString()} steps`];
  const { svg, y } = createFrame("training curves", `bits per ${unit}`, low, high, ends, remark);
  ["train", "val"].forEach((name, k) => {
    const from = WIDTH - 230 + 120 * k;
    svg.append(createSvg("line", { class: name, x1: from, x2: from + 18, y1: 15, y2: 15 }), createSvg("text", { x: from + 24, y: 20 }, { train: "training", val: "validation" }[name]));
    const path = content[name].map(p => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`);
    svg.append(createSvg("polyline", { class: name, points: path.join(" ") }));
    if (name === "val") for (const [step, bits, error] of content.val) {
      svg.append(createSvg("circle", { class: "dot", cx: x(step), cy: y(bits), r: 3 }));
      if (error) svg.append(createSvg("line", { class: "error", x1: x(step), x2: x(step), y1: y(bits - error), y2: y(bits + error) }));
    }
  });
  place.replaceChildren(svg);
}

// Bits in each bin of time, as horizontal steps with error bars; their mean is the bound.
export function drawElbo(place, slices, done, unit) {
  if (!slices.length) return;
  const high = 1.05 * Math.max(...slices.map(s => s.bits + s.error)), x = v => LEFT + v * (WIDTH - LEFT - 10);
  const remark = done ? `mean ${formatFigure(done)} on ${done.sequences} texts of the test split` : "measuring …";
  const { svg, y } = createFrame("the bound over time", `bits per ${unit} in each twelfth of time, ± 1 s.e.`, 0, high, ["data", "noise"], remark);
  svg.append(createSvg("polyline", { class: "val", points: slices.map(s => `${x(s.low)},${y(s.bits)} ${x(s.high)},${y(s.bits)}`).join(" ") }));
  for (const s of slices) {
    const middle = x((s.low + s.high) / 2);
    svg.append(createSvg("line", { class: "error", x1: middle, x2: middle, y1: y(s.bits - s.error), y2: y(s.bits + s.error) }));
  }
  place.replaceChildren(svg);
}

// States on the sphere: the mask in the middle, the tokens around the rim, each state with its last steps.
export function drawSphere(canvas, moments, at, text, alphabet) {
  const places = moments[at]?.projected_xy;
  canvas.parentElement.hidden = !places;
  if (!places) return;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const size = canvas.width, scale = 0.43 * size, middle = size / 2;
  const colour = name => style.getPropertyValue(name).trim();
  // Cube roots of distances: under much noise states are close to the middle.
  const spot = ([x, y]) => { const stretch = scale * Math.hypot(x, y) ** (1 / 3 - 1); return [middle + (x && x * stretch), middle + (y && y * stretch)]; };
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
  places[text].forEach((place, i) => {
    pen.strokeStyle = pen.fillStyle = colour(`--s${i % 7}`);
    pen.globalAlpha = 0.3;
    pen.beginPath();
    for (let k = Math.max(0, at - 5); k <= at; k++) {
      pen.lineTo(...spot(moments[k].projected_xy[text][i]));
    }
    pen.stroke();
    pen.globalAlpha = 0.9;
    pen.beginPath(); pen.arc(...spot(place), 5, 0, 2 * Math.PI); pen.fill();
  });
  pen.globalAlpha = 1;
}

// Whether any state lies between the mask and a token.
export const hasInnerStates = moments => moments.some(moment => moment.projected_xy?.some(row => row.some(([x, y]) => { const r = Math.hypot(x, y); return r > 0.02 && r < 0.98; })));
