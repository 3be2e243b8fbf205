// A job is asked for or joined once; what comes back are server-sent events, until it is done or the signal stops it.
export const wished = (wish, signal) => told("generate", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(wish), signal });
export const watched = (job, signal) => told(`watch/${job}`, { signal });
export const spent = (system, signal) => told(`time/${system}`, { method: "POST", signal });

async function* told(path, request) {
  const answer = await reached(path, request);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(gone);
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [name, data] = part.split("\n");
      yield [name.slice("event: ".length), JSON.parse(data.slice("data: ".length))];
    }
  }
}

export async function asked(path) {
  return (await reached(path)).json();
}

async function reached(path, request) {
  const answer = await fetch(path, request).catch(gone);
  if (!answer.ok) throw new Error(await sentence(answer));
  return answer;
}

function gone(problem) {
  throw problem.name === "AbortError" ? problem : new Error("The studio no longer answers. Start it again with: logosphere studio");
}

async function sentence(answer) {
  const text = await answer.text();
  try { return JSON.parse(text).sentence; } catch { return text || `The studio answered ${answer.status}.`; }
}
