import { fetchJson } from "./stream.js";

const request = (pane, tokens, at, text) => fetchJson(`edit/${pane.about.number}`, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(text ? { tokens, at, text } : { tokens, at }),
});

// Open a field in place of the word at a token, with what has been typed, or with the word itself if that is empty.
// Enter replaces the word by what is typed, Escape leaves it.
export async function editWord(pane, place, typed) {
  const row = pane.rows.find(one => one.contains(place)), cells = pane.cells[pane.rows.indexOf(row)];
  const at = +place.dataset.at, tokens = pane.tokensOf(pane.rows.indexOf(row));
  const field = document.createElement("input");
  let closed = false, replaced = [];
  field.className = "typed"; field.spellcheck = false; field.autocapitalize = "none"; field.setAttribute("aria-label", "replace this word"); field.value = typed ?? "";
  const fit = () => { field.style.width = `${Math.max(2, field.value.length + 1)}ch`; };
  const close = focus => {
    closed = true;
    field.remove();
    for (const cell of replaced) cell.classList.remove("replaced");
    focus?.focus();
  };
  const commit = async () => {
    if (closed) return;
    if (!field.value || field.value === field.dataset.word) return close();
    closed = true;
    try {
      const edit = await request(pane, tokens, at, field.value);
      if (pane.studio.splice(pane, edit)) return close(cells[Math.min(edit.at + edit.tokens.length, cells.length - 1)]);
    } catch (problem) { pane.studio.say(problem.message, true); }
    closed = false;
    field.focus();
  };
  field.addEventListener("input", fit);
  field.addEventListener("click", event => event.stopPropagation());
  field.addEventListener("blur", () => document.hasFocus() && commit());
  field.addEventListener("keydown", event => {
    event.stopPropagation();
    if (event.key === "Escape") close(place);
    else if (event.key === "Enter" || event.key === "Tab") { event.preventDefault(); commit(); }
  });
  place.before(field);
  fit(); field.focus();
  try {
    const word = await request(pane, tokens, at);
    if (closed || !word.word) return;
    replaced = cells.slice(word.at, word.at + word.removed);
    for (const cell of replaced) cell.classList.add("replaced");
    field.dataset.word = word.word;
    field.style.marginLeft = `${word.before.length}ch`; field.style.marginRight = `${word.after.length}ch`;
    if (typed === "" && !field.value) { field.value = word.word; field.select(); fit(); }
  } catch (problem) { pane.studio.say(problem.message, true); }
}
