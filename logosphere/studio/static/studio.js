import { Pane } from "./pane.js";
import { fetchJson } from "./stream.js";

const $ = id => document.getElementById(id);
const FIELDS = ["steps", "temperature", "top_p", "n", "seed"];

const studio = {
  systems: [], samplers: [], panes: [], held: new Map(), running: null, timer: null, warmed: false,

  say(sentence, bad = false) { $("word").textContent = sentence; $("word").classList.toggle("bad", bad); },

  // Models with the same tokenizer and length share pinned positions.
  locksOf({ tokenizer, length }) {
    const key = `${tokenizer} ${length}`;
    if (!this.held.has(key)) this.held.set(key, new Map());
    return this.held.get(key);
  },

  locked() {
    const count = Math.max(0, ...[...this.held.values()].map(locks => locks.size));
    $("free").hidden = count === 0;
    if (count) this.say(`${count === 1 ? "1 position is" : `${count} positions are`} pinned. Generate again to sample the other positions.`);
    this.show();
  },

  // Use the default temperature of the model until the user sets one.
  chosen() { if (!this.warmed && this.panes.length) $("temperature").value = this.panes[0].about.temperature; },

  add() {
    const pane = new Pane(this, this.panes.length);
    this.panes.push(pane);
    $("panes").append(pane.root);
    this.chosen();
  },

  pair() {
    this.stop();
    if (this.panes.length > 1) this.panes.pop().leave(); else this.add();
    $("pair").setAttribute("aria-pressed", String(this.panes.length > 1));
  },

  write() {
    const request = { prompt: $("prompt").value };
    for (const name of FIELDS) request[name] = $(name).valueAsNumber;
    this.panes[0].texts.scrollIntoView({ block: "nearest" });
    return this.run("Generating …", signal => this.panes.map(pane => pane.write(request, signal)));
  },

  // Watch a text that another page has requested.
  watch(job) { return this.run("Watching …", signal => [this.panes[0].watch(job, signal)]); },

  async run(sentence, begin) {
    this.stop(); this.pause();
    const control = new AbortController();
    this.running = control;
    $("stop").hidden = false;
    $("time").value = 1;
    this.say(sentence);
    const ends = await Promise.allSettled(begin(control.signal));
    if (this.running !== control) return;
    this.running = null;
    $("stop").hidden = true;
    const problem = ends.find(end => end.status === "rejected" && end.reason.name !== "AbortError");
    if (problem) this.say(problem.reason.message, true);
    else if ($("word").textContent === sentence) this.say("");
    this.show();
  },

  stop() {
    this.running?.abort();
    this.running = null;
    $("stop").hidden = true;
  },

  arrived(pane) {
    $("play").disabled = $("time").disabled = false;
    if (this.timer === null && +$("time").value === 1) pane.show(1);
    this.label();
  },

  show() { for (const pane of this.panes) pane.show(+$("time").value); this.label(); },

  label() {
    const pane = this.panes.find(one => one.moments.length);
    const moment = pane?.moments[pane.shown];
    if (moment) $("when").textContent = `step ${moment.step} of ${moment.steps}`;
  },

  pause() { clearInterval(this.timer); this.timer = null; $("play").textContent = "▶ Play"; },

  play() {
    if (this.timer !== null) return this.pause();
    if (+$("time").value >= 1) $("time").value = 0;
    $("play").textContent = "❚❚ Pause";
    this.timer = setInterval(() => {
      const frames = Math.max(...this.panes.map(pane => pane.moments.length));
      $("time").value = Math.min(1, +$("time").value + 1 / Math.max(40, frames - 1));
      if (+$("time").value >= 1) this.pause();
      this.show();
    }, 70);
  },
};

$("request").addEventListener("submit", event => { event.preventDefault(); studio.write(); });
$("stop").addEventListener("click", () => { studio.stop(); studio.say("Stopped."); });
$("pair").addEventListener("click", () => studio.pair());
$("free").addEventListener("click", () => {
  studio.held.clear();
  for (const pane of studio.panes) pane.known.clear();
  studio.say(""); studio.locked();
});
$("dice").addEventListener("click", () => { $("seed").value = Math.floor(Math.random() * 1e6); studio.write(); });
$("play").addEventListener("click", () => studio.play());
$("time").addEventListener("input", () => { studio.pause(); studio.show(); });
$("temperature").addEventListener("input", () => { studio.warmed = true; });
$("theme").addEventListener("click", () => studio.show()); // pictures are drawn in the colours of the theme
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => studio.show());

$("report").addEventListener("change", () => { $("sheet").src = `reports/${$("report").value}`; });
$("reports").addEventListener("toggle", () => { if ($("reports").open && !$("sheet").src) $("sheet").src = `reports/${$("report").value}`; });

try {
  const { systems, samplers, reports, limits } = await fetchJson("systems");
  Object.assign(studio, { systems, samplers });
  $("steps").max = limits.steps; $("n").max = limits.n;
  $("reports").hidden = !reports.length;
  $("report").append(...reports.map((name, i) => new Option(name, i)));
  studio.add();
  const job = /^#watch=(\d+)$/.exec(location.hash);
  if (job) studio.watch(job[1]);
} catch (problem) { studio.say(problem.message, true); }
