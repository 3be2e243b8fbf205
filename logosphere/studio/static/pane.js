import { fetchJson, generate, measureElbo, watchJob } from "./stream.js";
import { drawCurves, drawElbo, drawSphere, formatBits, hasInnerStates } from "./pictures.js";

// One model: its settings, the moments received so far, and its pinned positions.
export class Pane {
  constructor(studio, chosen) {
    this.studio = studio;
    this.root = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.moments = []; this.symbols = new Map(); this.rows = []; this.shown = -1; this.known = new Set();
    const find = name => this.root.querySelector(`.${name}`);
    [this.system, this.sampler, this.texts, this.canvas, this.cost] = ["system", "sampler", "texts", "disc", "cost"].map(find);
    this.system.append(...studio.systems.map((one, i) => new Option(`${one.name} (${one.system})`, i)));
    this.sampler.addEventListener("change", () => this.describeSampler());
    this.system.value = Math.min(chosen, studio.systems.length - 1);
    this.system.addEventListener("change", () => { studio.stop(); this.choose(); });
    this.texts.addEventListener("click", event => event.target.matches(".token") && this.toggle(event.target));
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

  get about() { return this.studio.systems[+this.system.value]; }
  get locks() { return this.studio.locksOf(this.about); }

  choose() {
    const { length, vocabulary, bits, kind, unit, trained } = this.about;
    const figure = bits == null ? "" : `; ${formatBits(bits, kind)} bits per ${unit} (${kind}) on held-out text`;
    this.root.querySelector(".facts").textContent = `Generates ${length} tokens from a vocabulary of ${vocabulary.toLocaleString()}${figure}.`;
    this.moments = []; this.shown = -1; this.cost.textContent = ""; this.canvas.parentElement.hidden = true;
    this.details.hidden = !trained;
    this.loadSamplers();
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
    try {
      const { own, fit } = await fetchJson(`ways/${number}`);
      if (this.system.value !== number) return;
      this.fit = new Set(fit);
      this.sampler.options[0].text = `its own: ${own}`;
      this.sampler.append(...fit.filter(name => name !== own).map(name => new Option(name, name)));
      this.own = own;
      this.describeSampler();
    } catch (problem) { this.studio.say(problem.message, true); }
  }

  describeSampler() {
    const name = this.sampler.value === "auto" ? this.own : this.sampler.value;
    const about = this.studio.samplers.find(one => one.name === name)?.about;
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
    const control = this.following = new AbortController(), place = this.root.querySelector(".spent"), slices = [];
    place.textContent = "Measuring …";
    try {
      for await (const [name, content] of measureElbo(+this.system.value, control.signal)) {
        if (name === "slice") slices.push(content);
        else if (name === "failed") throw new Error(content.sentence);
        drawElbo(place, slices, name === "done" ? content : null);
      }
    } catch (problem) { if (problem.name !== "AbortError") place.textContent = problem.message; }
  }

  async showCurves() {
    try { drawCurves(this.root.querySelector(".curves"), await fetchJson(`curves/${this.system.value}`), this.about); }
    catch (problem) { this.studio.say(problem.message, true); }
  }

  layOut(n, length) {
    this.rows = Array.from({ length: n }, () => {
      const row = document.createElement("div");
      row.className = "text";
      for (let i = 0; i < length; i++) {
        const token = document.createElement("span");
        token.className = "token hidden"; token.textContent = "·"; token.dataset.at = i;
        token.tabIndex = i ? -1 : 0; token.setAttribute("role", "button");
        row.append(token);
      }
      return row;
    });
    this.texts.replaceChildren(...this.rows);
  }

  async write(request, signal) {
    const locks = [...this.locks].map(([at, lock]) => lock.token === undefined ? { at, text: lock.text } : { at, token: lock.token });
    const content = { ...request, system: +this.system.value, sampler: this.sampler.value, locks };
    await this.consume(generate(content, signal));
  }

  watch(job, signal) { return this.consume(watchJob(job, signal)); }

  async consume(events) {
    for await (const [name, content] of events) {
      if (name === "begun") {
        if (+this.system.value !== content.system) { this.system.value = content.system; this.choose(); }
        this.begun = content; this.moments = []; this.shown = -1; this.known = new Set(content.known);
        if (this.rows.length !== content.n || this.rows[0].children.length !== content.length) this.layOut(content.n, content.length);
        this.copies.forEach(button => { button.disabled = false; });
        if (!content.filtered) this.studio.say("This model predicts states and not tokens: it has no temperature and no top-p.");
        if (content.approximate) this.studio.say("This model was trained without known positions: sampling around them is approximate.");
      } else if (name === "moment") {
        for (const [token, symbol] of Object.entries(content.symbols)) this.symbols.set(+token, symbol);
        this.moments.push(content);
        this.studio.arrived(this);
      } else if (name === "done") {
        this.cost.textContent = `${content.nfe} network evaluations for each text, ${content.seconds.toFixed(1)} s in all`;
        this.caption();
      } else if (name === "failed") throw new Error(content.sentence);
    }
  }

  caption() {
    const still = this.moments[0]?.places && !hasInnerStates(this.moments) && this.fit?.has("bridge");
    this.root.querySelector(".still").textContent = still ? "On the any-order path each position moves from the mask to its token in one step; with the sampler bridge (joint path) all positions move at once." : "";
  }

  // Show the moment at this fraction of the steps; update only what has changed.
  show(fraction) {
    if (!this.moments.length) return;
    const at = Math.round(fraction * (this.moments.length - 1)), moment = this.moments[at];
    const finished = moment.step === moment.steps;
    this.shown = at;
    this.rows.forEach((row, k) => {
      const fresh = new Set(finished ? [] : moment.changed[k]), sure = moment.sure?.[k], guess = moment.guessed?.[k];
      moment.tokens[k].forEach((token, i) => this.mark(row.children[i], token, i, fresh.has(i), sure && +sure[i], guess ? guess[i] : -1));
    });
    drawSphere(this.canvas, this.moments, at, 0, this.about.alphabet);
  }

  mark(place, token, i, fresh, sure, guess) {
    const lock = this.locks.get(i), held = lock || this.known.has(i);
    const written = lock?.text !== undefined && !this.known.has(i);
    const text = written ? lock.text : this.symbols.get(lock?.token ?? token) ?? this.symbols.get(guess) ?? "·";
    const doubt = sure !== undefined && sure < 5 ? `u${9 - sure}` : "";
    const look = `token ${held ? "locked" : token < 0 ? guess < 0 ? "hidden" : "guess" : fresh ? "fresh" : doubt}`;
    if (place.textContent !== text) place.textContent = text;
    if (place.className !== look) place.className = look;
    place.setAttribute("aria-pressed", held ? "true" : "false");
  }

  tokenAt(place) {
    const row = this.rows.indexOf(place.parentElement);
    const at = +place.dataset.at, moment = this.moments[this.shown];
    const token = moment?.tokens[row][at] ?? -1;
    return token >= 0 ? token : moment?.guessed?.[row][at] ?? -1;
  }

  toggle(place) {
    const at = +place.dataset.at, token = this.tokenAt(place);
    if (this.locks.has(at)) this.locks.delete(at);
    else if (token >= 0) this.locks.set(at, { token });
    else return this.studio.say("There is no token to pin yet; type a letter to set one here.");
    this.known.delete(at);
    this.studio.locked();
  }

  key(event) {
    const place = event.target, at = +place.dataset.at, row = place.parentElement;
    const go = to => { const next = row.children[to]; if (next) { place.tabIndex = -1; next.tabIndex = 0; next.focus(); } };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight") go(at + 1);
    else if (event.key === "ArrowLeft") go(at - 1);
    else if (event.key === "Enter") this.toggle(place);
    else if (event.key === "Delete" || event.key === "Backspace") {
      this.locks.delete(at); this.known.delete(at); this.studio.locked();
      if (event.key === "Backspace") go(at - 1);
    } else if (event.key.length === 1) {
      this.locks.set(at, { text: event.key }); this.known.delete(at);
      place.textContent = event.key; place.className = "token locked";
      this.studio.locked(); go(at + 1);
    } else return;
    event.preventDefault();
  }
}
