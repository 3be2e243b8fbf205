// What a refresh of the page keeps, in the storage of this tab: settings, held tokens and the last texts.
const KEY = `logosphere studio ${location.pathname}`;

export function remember(state) {
  try { sessionStorage.setItem(KEY, JSON.stringify(state)); }
  catch { sessionStorage.setItem(KEY, JSON.stringify({ ...state, panes: state.panes.map(({ system, sampler }) => ({ system, sampler })) })); }  // without texts that are too long for it
}

export const recall = () => JSON.parse(sessionStorage.getItem(KEY));
