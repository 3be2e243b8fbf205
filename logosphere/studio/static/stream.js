// A wish is sent once; what comes back are server-sent events, until the text is written or the signal stops it.
export async function* wished(wish, signal) {
  const answer = await fetch("generate", {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(wish), signal,
  });
  if (!answer.ok) throw new Error(await sentence(answer));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
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
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await sentence(answer));
  return answer.json();
}

async function sentence(answer) {
  const text = await answer.text();
  try { return JSON.parse(text).sentence; } catch { return text || `The studio answered ${answer.status}.`; }
}
