import { fetchJson, generate, measureElbo, watchJob } from "./stream.js";
import { drawCurves, drawElbo, drawSphere, formatFigure, hasInnerStates } from "./pictures.js";
import { editWord } from "./words.js";

const OPEN = -1;

// One model: its settings, the moments received so far, and its held tokens.
export class Pane {
  constructor(studio, number, wanted = "auto") {
    this.studio = studio;
    this.wanted = wanted;
    this.root = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.moments = []; this.symbols = new Map(); this.rows = []; this.cells = []; this.shown = -1; this.known = new Set();
    const find = name => this.root.querySelector(`.${name}`);
    [this.system, this.sampler, this.texts, this.canvas, this.cost] = ["system", "sampler", "texts", "disc", "cost"].map(find);
    this.list();
    this.sampler.addEventListener("change", () => this.describeSampler());
    this.system.value = number;
    this.system.addEventListener("change", () => { studio.stop(); this.choose(); });
    this.texts.addEventListener("click", event => event.target.matches(".token") && this.toggle(event.target));
    this.texts.addEventListener("dblclick", event => event.target.matches(".token") && this.edit(event.target, ""));
    this.texts.addEventListener("keydown", event => event.target.matches(".token") && this.key(event));
    for (const name of ["command", "python"]) find(name).addEventListener("click", () => this.copy(find(name), this.begun[name], "Copied."));
    find("link").addEventListener("click", () => this.copy(find("link"), `${location.href.split("#")[0]}#watch=${this.begun.job}`,
      "Copied: this address, opened on this machine, shows the same job."));
    this.copies = [find("command"), find("python"), find("link")];
    this.details = find("training");
    this.bound = find("bound");
    this.bound.addEventListener("toggle", () => this.bound.open ? this.showElbo() : this.following?.abort());
    this.details.addEventListener("toggle", () => this.details.open && this.showCurves());
    this.drawing = setInterval(() => this.details.open && this.root.isConnected && !document.hidden && this.showCurves(), 5000);
    this.choose();
  }

  leave() { this.following?.abort(); clearInterval(this.drawing); this.root.remove(); }

  get about() { return this.studio.systems.get(+this.system.value); }
  get holds() { return this.studio.holdsOf(this.about); }
  get edited() { return this.moments.at(-1)?.edited ?? false; }

  // The tokens of the prompt, as long as it is the one that the text was generated from.
  get prompted() { return this.begun && this.moments.length && this.studio.prompt === this.begun.prompt_text ? this.begun.prompt : 0; }

  // List the models; new ones may have appeared, and the figure of a running training changes.
  list() {
    const chosen = this.system.value, all = [...this.studio.systems.values()];
    const label = one => `${one.name} (${one.system})`;
    if (all.map(label).join() !== [...this.system.options].map(one => one.text).join()) {
      this.system.replaceChildren(...all.map(one => new Option(label(one), one.number)));
      if (this.studio.systems.has(+chosen)) this.system.value = chosen;
    }
    if (chosen) this.describe();
  }

  describe() {
    const { length, vocabulary, figure, saved } = this.about;
    const known = figure ? ` ${formatFigure(figure)} on ${figure.data}.` : "";
    const waiting = saved ? "" : " Its training has not saved any weights yet.";
    this.root.querySelector(".facts").textContent = `Generates ${length} tokens from a vocabulary of ${vocabulary.toLocaleString()}.${known}${waiting}`;
  }

  choose() {
    const { length, trained } = this.about;
    this.describe();
    this.moments = []; this.shown = -1; this.known = new Set(); this.cost.textContent = ""; this.canvas.parentElement.hidden = true;
    this.details.hidden = !trained;
    this.ready = this.loadSamplers();
    this.studio.chosen();
    this.copies.forEach(button => { button.disabled = true; });
    this.layOut(1, Math.min(length, 256));
    this.following?.abort(); this.bound.open = false;
    if (this.details.open) this.showCurves();
  }

  // Offer the default sampler at once, and the others that support the model as soon as it has been loaded.
  async loadSamplers() {
    const number = this.system.value;
    this.own = this.fit = undefined;
    this.sampler.replaceChildren(new Option("its own", "auto"));
    this.describeSampler();
    if (!this.about.saved) return;
    try {
      const { own, fit } = await fetchJson(`ways/${number}`);
      if (this.system.value !== number) return;
      this.fit = new Set(fit);
      this.sampler.options[0].text = `its own: ${own}`;
      this.sampler.append(...fit.filter(name => name !== own).map(name => new Option(name, name)));
      if (this.wanted !== own && this.fit.has(this.wanted)) this.sampler.value = this.wanted;
      this.own = own; this.wanted = "auto";
      this.describeSampler();
    } catch (problem) { this.studio.say(problem.message, true); }
  }

  describeSampler() {
    const name = this.sampler.value === "auto" ? this.own : this.sampler.value;
    const about = this.studio.samplers.find(one => one.name === name)?.description;
    this.root.querySelector(".way").textContent = about ? `Sampler ${name}: ${about}.` : "";
  }

  copy(button, text, sentence) {
    const name = button.textContent;
    navigator.clipboard.writeText(text).then(() => {
      this.studio.say(sentence);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = name; }, 1500);
    }, () => this.studio.say("The browser does not allow this page to copy.", true));
  }

  // Draw the bound over time, bin by bin as it is measured.
  async showElbo() {
    const control = this.following = new AbortController(), place = this.root.querySelector(".spent"), slices = [], { unit } = this.about;
    place.textContent = "Measuring …";
    try {
      for await (const [name, content] of measureElbo(+this.system.value, control.signal)) {
        if (name === "slice") slices.push(content);
        else if (name === "failed") throw new Error(content.sentence);
        drawElbo(place, slices, name === "done" ? content : null, unit);
      }
    } catch (problem) { if (problem.name !== "AbortError") place.textContent = problem.message; }
  }

  async showCurves() {
    try { drawCurves(this.root.querySelector(".curves"), await fetchJson(`curves/${this.system.value}`), this.about); }
    catch (problem) { this.studio.say(problem.message, true); }
  }

  layOut(n, length) {
    this.cells = Array.from({ length: n }, () => Array.from({ length }, (_, i) => {
      const token = document.createElement("span");
      token.className = "token hidden"; token.textContent = "·"; token.dataset.at = i;
      token.tabIndex = i ? -1 : 0; token.setAttribute("role", "button");
      return token;
    }));
    this.rows = this.cells.map(cells => {
      const row = document.createElement("div");
      row.className = "text";
      row.append(...cells);
      return row;
    });
    this.texts.replaceChildren(...this.rows);
    if (this.holds.size) this.show(1);
  }

  async write(request, signal) {
    await this.ready;
    const holds = [...this.holds].map(([at, { token }]) => ({ at, token }));
    await this.consume(generate({ ...request, system: +this.system.value, sampler: this.sampler.value, holds }, signal));
  }

  watch(job, signal) { return this.consume(watchJob(job, signal)); }

  async consume(events, quiet = false) {
    for await (const [name, content] of events) {
      if (name === "begun") {
        if (+this.system.value !== content.system) { this.system.value = content.system; this.choose(); }
        this.begun = content; this.moments = []; this.shown = -1; this.finished = false; this.known = new Set(content.known);
        if (this.rows.length !== content.n || this.cells[0].length !== content.length) this.layOut(content.n, content.length);
        this.copies.forEach(button => { button.disabled = false; });
        if (quiet) continue;
        if (!content.filtered) this.studio.say("This model predicts states and not tokens: it has no temperature and no top-p.");
        if (content.approximate) this.studio.say("This model was trained without known positions: sampling around them is approximate.");
        if (content.released.length) this.studio.released(this, content.released);
      } else if (name === "moment") {
        for (const [token, symbol] of Object.entries(content.symbols)) this.symbols.set(+token, symbol);
        this.moments.push(content);
        this.studio.arrived(this);
      } else if (name === "done") {
        this.finished = true;
        this.cost.textContent = `${content.nfe} network evaluations for each text, ${content.seconds.toFixed(1)} s in all`;
        this.caption();
      } else if (name === "failed") throw new Error(content.sentence);
    }
  }

  caption() {
    const still = this.moments[0]?.projected_xy && !hasInnerStates(this.moments) && this.fit?.has("bridge");
    this.root.querySelector(".still").textContent = still ? "On the any-order path each position moves from the mask to its token in one step; with the sampler bridge (joint path) all positions move at once." : "";
  }

  // Show the moment at this fraction of the steps; update only what has changed. Nothing is shown after the first end.
  show(fraction) {
    const at = Math.round(fraction * (this.moments.length - 1)), moment = this.moments[at], { end } = this.about;
    const finished = !moment || moment.step === moment.steps;
    this.shown = moment ? at : -1;
    this.cells.forEach((cells, k) => {
      const fresh = new Set(finished ? [] : moment.changed[k]), sure = moment?.confidence?.[k], guess = moment?.predicted?.[k];
      const tokens = this.tokensOf(k), ends = end === null ? -1 : tokens.indexOf(end);
      tokens.forEach((token, i) => {
        this.mark(cells[i], token, i, fresh.has(i), sure && +sure[i], guess ? guess[i] : OPEN);
        cells[i].classList.toggle("end", token === end);
        cells[i].title = token === end ? "end of the text" : "";
        cells[i].hidden = ends >= 0 && i > ends;
      });
    });
    if (moment) drawSphere(this.canvas, this.moments, at, 0, this.about.alphabet);
  }

  // The tokens of a text as shown, with those that are held.
  tokensOf(k) {
    const tokens = this.moments[this.shown]?.tokens[k] ?? this.cells[k].map(() => OPEN);
    return tokens.map((token, i) => this.isPrompt(i) ? token : this.holds.get(i)?.token ?? token);
  }

  isPrompt(at) { return at < this.prompted; }

  mark(place, token, i, fresh, sure, guess) {
    const held = this.isPrompt(i) || this.holds.has(i) || this.known.has(i);
    const text = token === this.about.end ? "■" : this.holds.get(i)?.token === token ? this.holds.get(i).symbol : this.symbols.get(token) ?? this.symbols.get(guess) ?? "·";
    const doubt = sure !== undefined && sure < 5 ? `u${9 - sure}` : "";
    const look = `token ${held ? "held" : token < 0 ? guess < 0 ? "hidden" : "guess" : fresh ? "fresh" : doubt}`.trim();
    if (place.textContent !== text) place.textContent = text;
    if (place.className !== look) place.className = look;
    place.setAttribute("aria-pressed", held ? "true" : "false");
  }

  // Whether a position can be held or edited; if not, say why.
  isFree(at) {
    if (this.isPrompt(at)) this.studio.say("This token belongs to the prompt; change it in the field of the prompt.");
    return !this.isPrompt(at);
  }

  toggle(place) {
    const at = +place.dataset.at, k = this.rows.findIndex(row => row.contains(place));
    if (!this.isFree(at)) return;
    const token = this.tokensOf(k)[at], shown = token >= 0 ? token : this.moments[this.shown]?.predicted?.[k][at] ?? OPEN;
    if (this.holds.has(at)) this.holds.delete(at);
    else if (shown >= 0) this.holds.set(at, { token: shown, symbol: this.symbols.get(shown) });
    else return this.studio.say("There is no token to hold yet; type a word to set one here.");
    this.known.delete(at);
    this.studio.holding();
  }

  edit(place, typed) { if (this.isFree(+place.dataset.at)) editWord(this, place, typed); }

  // Replace `removed` tokens of every text by those of an edit; the tokens after them move, and the timeline gets a frame.
  splice({ at, removed, tokens, symbols }) {
    const length = this.cells[0].length, base = this.moments[this.shown], same = this.cells.map(() => []);
    const put = (row, filling, blank) => [...row.slice(0, at), ...filling, ...row.slice(at + removed), ...Array(length).fill(blank)].slice(0, length);
    tokens.forEach((token, i) => this.symbols.set(token, symbols[i]));
    const confidence = base?.confidence?.map(row => put([...row], tokens.map(() => "9"), "9").join("")) ?? null;
    const texts = this.cells.map((_, k) => put(base?.tokens[k] ?? Array(length).fill(OPEN), tokens, OPEN));
    this.known = new Set([...this.known].filter(i => i < at || i >= at + removed).map(i => i < at ? i : i + tokens.length - removed));
    this.moments.push({ step: 0, steps: 0, projected_xy: null, ...base, tokens: texts, changed: same, confidence, predicted: null, symbols: {}, edited: true });
    this.copies.forEach(button => { button.disabled = true; });  // a command gives the text that was generated
  }

  key(event) {
    const place = event.target, at = +place.dataset.at, cells = this.cells[this.rows.findIndex(row => row.contains(place))];
    const go = to => { const next = cells[to]; if (next && !next.hidden) { place.tabIndex = -1; next.tabIndex = 0; next.focus(); } };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight") go(at + 1);
    else if (event.key === "ArrowLeft") go(at - 1);
    else if (event.key === "Enter") this.toggle(place);
    else if (event.key === "Delete" || event.key === "Backspace") {
      if (this.isFree(at)) { this.holds.delete(at); this.known.delete(at); this.studio.holding(); }
      if (event.key === "Backspace") go(at - 1);
    } else if (event.key === "F2") this.edit(place, "");
    else if (["Dead", "Process"].includes(event.key)) return this.edit(place, null);  // an accent, or an input method
    else if (event.key.length === 1) this.edit(place, event.key);
    else return;
    event.preventDefault();
  }

  // What a refresh of the page keeps, and its return.
  get state() {
    const kept = { system: this.about.name, sampler: this.sampler.value };
    if (!this.moments.length) return kept;
    return { ...kept, begun: this.begun, moment: this.moments.at(-1), finished: this.finished, cost: this.cost.textContent, symbols: [...this.symbols] };
  }

  restore({ begun, moment, finished, cost, symbols }) {
    if (!moment) return;
    this.symbols = new Map(symbols); this.begun = begun; this.finished = finished;
    this.known = new Set(moment.edited ? [] : begun?.known); this.cost.textContent = cost;
    if (this.rows.length !== moment.tokens.length || this.cells[0].length !== moment.tokens[0].length) this.layOut(moment.tokens.length, moment.tokens[0].length);
    this.moments = [moment];
    this.copies.forEach(button => { button.disabled = moment.edited || !begun; });
    this.studio.arrived(this);
  }

  // After a refresh: all steps of the text, while the studio still keeps them.
  async replay(signal) {
    try { await this.consume(watchJob(this.begun.job, signal), true); }
    catch (problem) { if (problem.name === "AbortError") throw problem; }  // the last step is shown already
  }
}
