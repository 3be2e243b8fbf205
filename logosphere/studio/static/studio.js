import { recall, remember } from "./memory.js";
import { Pane } from "./pane.js";
import { fetchJson } from "./stream.js";

const $ = id => document.getElementById(id);
const FIELDS = ["steps", "temperature", "top_p", "n", "seed"];
const plural = (count, one) => count === 1 ? `1 ${one} is` : `${count} ${one}s are`;

const studio = {
  systems: new Map(), samplers: [], panes: [], held: new Map(), running: null, timer: null, warmed: false, follows: true,

  say(sentence, bad = false) { $("word").textContent = sentence; $("word").classList.toggle("bad", bad); },

  get prompt() { return $("prompt").value; },

  // Models with the same tokenizer and length share held tokens.
  holdsOf({ tokenizer, length }) {
    const key = `${tokenizer} ${length}`;
    if (!this.held.has(key)) this.held.set(key, new Map());
    return this.held.get(key);
  },

  holding() {
    const count = Math.max(0, ...this.panes.map(pane => pane.holds.size));
    $("free").hidden = count === 0;
    this.say(count ? `${plural(count, "token")} held. Generate again to sample the others.` : "");
    this.show();
  },

  // A prompt takes its positions: tokens that were held there are released.
  released(pane, positions) {
    for (const at of positions) pane.holds.delete(at);
    $("free").hidden = !this.panes.some(one => one.holds.size);
    this.say(`${plural(positions.length, "held token")} released, because the prompt takes the place.`);
  },

  // Replace a word in every text of the models that share held tokens; return whether there was room for it.
  splice(pane, edit) {
    const { at, removed, tokens, symbols } = edit, { length } = pane.about, holds = pane.holds, shift = tokens.length - removed;
    if (!pane.isFree(at)) return false;
    const moved = [...holds].filter(([i]) => i < at || i >= at + removed).map(([i, hold]) => [i < at ? i : i + shift, hold]);
    if (moved.some(([i]) => i >= length)) {
      this.say("There is no room for this word: a held token would move beyond the last position.", true);
      return false;
    }
    for (const one of this.panes) if (one.holds === holds) one.splice(edit);
    holds.clear();
    for (const [i, hold] of moved) holds.set(i, hold);
    tokens.forEach((token, i) => holds.set(at + i, { token, symbol: symbols[i] }));
    this.follows = true;
    this.fit();
    this.holding();
    return true;
  },

  // Use the default temperature of the model until the user sets one.
  chosen() { if (!this.warmed && this.panes.length) $("temperature").value = this.panes[0].about.temperature; },

  add(saved = {}) {
    const all = [...this.systems.values()], known = all.find(one => one.name === saved.system);
    const pane = new Pane(this, (known ?? all[Math.min(this.panes.length, all.length - 1)]).number, saved.sampler);
    this.panes.push(pane);
    $("panes").append(pane.root);
    $("pair").setAttribute("aria-pressed", String(this.panes.length > 1));
    this.chosen();
    if (known) pane.restore(saved);
  },

  pair() {
    this.stop();
    if (this.panes.length > 1) this.panes.pop().leave(); else this.add();
    $("pair").setAttribute("aria-pressed", String(this.panes.length > 1));
    this.fit();
  },

  write() {
    const request = { prompt: this.prompt };
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
    this.follows = true;
    if (sentence) this.say(sentence);
    const ends = await Promise.allSettled(begin(control.signal));
    if (this.running !== control) return;
    this.running = null;
    $("stop").hidden = true;
    const problem = ends.find(end => end.status === "rejected" && end.reason.name !== "AbortError");
    if (problem) this.say(problem.reason.message, true);
    else if (sentence && $("word").textContent === sentence) this.say("");
    this.show();
  },

  stop() {
    this.running?.abort();
    this.running = null;
    $("stop").hidden = true;
  },

  arrived(pane) {
    $("play").disabled = $("time").disabled = false;
    this.fit();
    if (this.timer === null && this.follows) pane.show(1);
    this.label();
  },

  // The timeline has one place for each frame of the longest trajectory.
  fit() {
    const time = $("time");
    time.max = Math.max(1, ...this.panes.map(pane => pane.moments.length - 1));
    if (this.follows) time.value = time.max;
  },

  get fraction() { return +$("time").value / +$("time").max; },

  show() { for (const pane of this.panes) pane.show(this.fraction); this.label(); },

  label() {
    const pane = this.panes.find(one => one.moments.length);
    const moment = pane?.moments[pane.shown];
    if (moment) $("when").textContent = moment.edited ? "edited" : `step ${moment.step} of ${moment.steps}`;
  },

  pause() { clearInterval(this.timer); this.timer = null; $("play").textContent = "▶ Play"; },

  play() {
    const time = $("time");
    if (this.timer !== null) return this.pause();
    if (+time.value >= +time.max) time.value = 0;
    this.show();
    $("play").textContent = "❚❚ Pause";
    this.timer = setInterval(() => {
      time.value = +time.value + 1;
      this.follows = +time.value >= +time.max;
      if (this.follows) this.pause();
      this.show();
    }, Math.min(400, Math.max(70, 2800 / +time.max)));
  },

  // Runs and reports that have appeared since, and the figures of running trainings.
  async refresh() {
    const { systems, reports, unreadable } = await fetchJson("systems");
    this.take(systems, reports);
    for (const pane of this.panes) if (this.systems.has(+pane.system.value)) pane.list();
    return unreadable;
  },

  take(systems, reports) {
    const gone = this.panes.map(pane => pane.about).filter(about => about && !systems.some(one => one.number === about.number));
    this.systems = new Map([...systems, ...gone].map(one => [one.number, one]));
    $("reports").hidden = !reports.length;
    const listed = $("report").options.length;
    $("report").append(...reports.slice(listed).map(({ name, path }) => new Option(name, path)));
  },

  get state() {
    const fields = Object.fromEntries(["prompt", ...FIELDS].map(name => [name, $(name).value]));
    return { fields, warmed: this.warmed, running: this.running !== null, panes: this.panes.map(pane => pane.state), held: [...this.held].map(([key, holds]) => [key, [...holds]]) };
  },

  // Return to what was on the page before it was refreshed.
  restore({ fields, warmed, running, panes, held }) {
    this.held = new Map(held.map(([key, holds]) => [key, new Map(holds)]));
    for (const [name, value] of Object.entries(fields)) $(name).value = value;
    this.warmed = warmed;
    for (const pane of panes) this.add(pane);
    $("temperature").value = fields.temperature;
    this.holding();
    if (running) return this.write();  // the same settings give the same texts
    const kept = this.panes.filter(pane => pane.finished && pane.begun && !pane.edited);
    if (kept.length) return this.run("", signal => kept.map(pane => pane.replay(signal)));
  },
};

$("request").addEventListener("submit", event => { event.preventDefault(); studio.write(); });
$("stop").addEventListener("click", () => { studio.stop(); studio.say("Stopped."); });
$("pair").addEventListener("click", () => studio.pair());
$("free").addEventListener("click", () => {
  studio.held.clear();
  for (const pane of studio.panes) pane.known = new Set([...pane.known].filter(at => pane.isPrompt(at)));
  studio.holding();
});
$("dice").addEventListener("click", () => { $("seed").value = Math.floor(Math.random() * 1e6); studio.write(); });
$("play").addEventListener("click", () => studio.play());
$("time").addEventListener("input", () => { studio.pause(); studio.follows = studio.fraction >= 1; studio.show(); });
$("temperature").addEventListener("input", () => { studio.warmed = true; });
$("theme").addEventListener("click", () => studio.show()); // pictures are drawn in the colours of the theme
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => studio.show());

$("report").addEventListener("change", () => { $("sheet").src = $("report").value; });
$("reports").addEventListener("toggle", () => { if ($("reports").open && !$("sheet").src) $("sheet").src = $("report").value; });

try {
  const { systems, samplers, reports, limits, unreadable } = await fetchJson("systems");
  studio.samplers = samplers;
  $("steps").max = limits.steps; $("n").max = limits.n;
  studio.take(systems, reports);
  const job = /^#watch=(\d+)$/.exec(location.hash), saved = recall();
  if (saved) studio.restore(saved);
  else studio.add();
  if (job && !saved) studio.watch(job[1]);
  if (unreadable.length) studio.say(unreadable[0], true);
  addEventListener("pagehide", () => remember(studio.state));
  setInterval(() => document.hidden || studio.refresh().catch(problem => studio.say(problem.message, true)), 4000);
} catch (problem) { studio.say(problem.message, true); }
