// Requests to the studio. Jobs are streams of server-sent events, until they are done or the signal aborts them.
export const generate = (request, signal) => streamEvents("generate", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(request), signal });
export const watchJob = (job, signal) => streamEvents(`watch/${job}`, { signal });
export const measureElbo = (system, signal) => streamEvents(`time/${system}`, { method: "POST", signal });

async function* streamEvents(path, options) {
  const answer = await send(path, options);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(failConnection);
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [name, data] = part.split("\n");
      yield [name.slice("event: ".length), JSON.parse(data.slice("data: ".length))];
    }
  }
}

export async function fetchJson(path, options) {
  return (await send(path, options)).json();
}

async function send(path, options) {
  const answer = await fetch(path, options).catch(failConnection);
  if (!answer.ok) throw new Error(await readError(answer));
  return answer;
}

function failConnection(problem) {
  throw problem.name === "AbortError" ? problem : new Error("The studio no longer answers. Start it again with: logosphere studio");
}

async function readError(answer) {
  const text = await answer.text();
  try { return JSON.parse(text).sentence; } catch { return text || `The studio answered ${answer.status}.`; }
}
