"use strict";
(() => {
  const animations = JSON.parse(document.getElementById("animations").textContent);
  const slider = document.getElementById("time"), button = document.getElementById("play"), label = document.getElementById("when");
  // Every animation is unrolled once: frame f of sample k is a row of symbol numbers, -1 at hidden positions.
  const unroll = (animation, changed) => {
    let rows = animation.frames[0].map(() => new Array(animation.length).fill(-1));
    const frames = [rows];
    for (const frame of changed) {
      rows = rows.map((row, k) => {
        const next = row.slice(), changes = frame[k];
        for (let i = 0; i < changes.length; i += 2) next[changes[i]] = changes[i + 1];
        return next;
      });
      frames.push(rows);
    }
    return frames;
  };
  const rolls = animations.map(animation => unroll(animation, animation.frames)), predictions = animations.map(animation => unroll(animation, animation.predictions));
  const places = animations.map((animation, n) => [...document.querySelectorAll(`[data-animation="${n}"] pre`)]);
  const span = (name, text) => { const part = document.createElement(name); part.textContent = text; return part; };
  // A part of a text is an element: i hidden, s predicted, b just changed, u5 … u9 written with low confidence.
  const doubt = digit => digit === undefined || digit >= 5 ? "plain" : `u${9 - digit}`;
  function write(place, row, before, symbols, confidence, guess) {
    const parts = [];
    let kind = null, text = "";
    const made = () => {
      if (kind === "plain") return document.createTextNode(text);
      const part = span(kind[0], text);
      if (kind[0] === "u") part.className = kind;
      return part;
    };
    const flush = () => { if (text) parts.push(made()); text = ""; };
    row.forEach((symbol, i) => {
      const would = guess ? guess[i] : -1;
      const is = symbol < 0 ? would < 0 ? "i" : "s" : before && before[i] !== symbol ? "b" : doubt(confidence ? +confidence[i] : undefined);
      if (is !== kind) { flush(); kind = is; }
      text += symbol >= 0 ? symbols[symbol] : would >= 0 ? symbols[would] : "·";
    });
    flush();
    place.replaceChildren(...parts);
  }
  function show(share) {
    animations.forEach((animation, n) => {
      const frames = rolls[n], at = Math.round(share * (frames.length - 1));
      places[n].forEach((place, k) => write(place, frames[at][k], at && share < 1 ? frames[at - 1][k] : null, animation.symbols, at && animation.confidence.length ? animation.confidence[at - 1][k] : "", predictions[n][at]?.[k]));
    });
    label.textContent = share >= 1 ? "finished" : `${Math.round(100 * share)} % of steps`;
  }
  let timer = null;
  function stop() { clearInterval(timer); timer = null; button.textContent = "▶ Watch"; }
  function play() {
    if (timer) return stop();
    if (+slider.value >= 1) slider.value = 0;
    button.textContent = "❚❚ Pause";
    timer = setInterval(() => {
      slider.value = Math.min(1, +slider.value + 0.0125);
      show(+slider.value);
      if (+slider.value >= 1) stop();
    }, 90);
  }
  button.addEventListener("click", play);
  slider.addEventListener("input", () => { stop(); show(+slider.value); });
  show(1);
})();
