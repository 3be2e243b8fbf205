// Layout problems that make a page hard to read, measured on the rendered page.

const seen = selector => [...document.querySelectorAll(selector)].filter(element => element.checkVisibility());
const named = element => String(element.id || element.getAttribute("class") || element.tagName);

// Elements that extend beyond the window, except for tables that scroll.
const beyond = () => seen("body *").filter(e => !e.closest("svg, .scroll > *") && e.getBoundingClientRect().right > innerWidth + 1).map(named);

// Text of a figure that is cut off at its border.
const cut = () => seen("svg text").filter(e => {
  const word = e.getBoundingClientRect(), picture = e.ownerSVGElement.getBoundingClientRect();
  return word.left < picture.left || word.right > picture.right || word.top < picture.top || word.bottom > picture.bottom;
}).map(e => e.textContent);

// Controls too small for touch.
const tiny = () => seen("button, select, input:not([type=range])").filter(e => e.getBoundingClientRect().height < 32).map(named);

// The fraction of the sphere figure that is not blank.
function inked() {
  const canvas = document.querySelector("canvas.disc");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let drawn = 0;
  for (let i = 3; i < data.length; i += 4) drawn += data[i] > 0;
  return drawn / (data.length / 4);
}

// Text whose contrast with its background is below 4.5, the minimum of WCAG AA.
function faint() {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const mixed = colours => {
    for (const colour of ["white", ...colours]) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255);
  };
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) + 0.05;
  const found = new Set();
  for (const element of seen("h1, p, label, button, input, select, output, summary, li, .token, .curves text, .drawing text")) {
    const words = (element.matches("input, select") ? element.value : element.textContent).trim();
    if (!words || element.matches(":disabled, .hidden, input[type=range]")) continue;
    const under = [];
    for (let at = element; at; at = at.parentElement) under.unshift(getComputedStyle(at).backgroundColor);
    const style = getComputedStyle(element), ink = element.closest("svg") ? style.fill : style.color;
    const [front, back] = [light(mixed([...under, ink])), light(mixed(under))];
    const ratio = Math.max(front, back) / Math.min(front, back);
    if (ratio < 4.5) found.add(`${words.slice(0, 30)} (${named(element)}): ${ratio.toFixed(2)}`);
  }
  return [...found];
}
