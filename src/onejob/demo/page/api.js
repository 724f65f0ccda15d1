// The job API, as the page asks it.

const TIMEOUT_MS = 10000;

export const LIVE = new Set(["queued", "running", "retrying"]);

// The server has said no; the message is its problem in words.
export class Refusal extends Error {}

// The server has said nothing.
export class Unreachable extends Refusal {}

export const submit = (task, kwargs) => call("jobs", { task, kwargs });
export const look = (path) => call(path);
export const cancel = (id) => call(jobPath(id, "/cancel"), {});

// Returns the identity that a submission would have; nothing is stored.
export async function identify(task, kwargs) {
  return (await call("jobs", { task, kwargs, validate_only: true })).identity;
}

// Returns the newest job of an identity, or null.
export async function newest(identity) {
  return (await call(`jobs?limit=1&include=progress&include=result&identity=${encodeURIComponent(identity)}`)).jobs[0] ?? null;
}

// Calls `seen` with the job now and at each change until it has ended, and `lost` whenever the stream breaks. The browser
// comes again by itself, and says which event it had last; `over` tells that it will not.
export function follow(id, { seen, lost }) {
  const stream = new EventSource(jobPath(id, "/events"));
  const take = ({ data }) => {
    const job = JSON.parse(data);
    if (!LIVE.has(job.state)) stream.close();
    seen(job);
  };
  stream.addEventListener("state", take);
  stream.addEventListener("progress", take);
  stream.addEventListener("error", () => lost({ over: stream.readyState === EventSource.CLOSED }));
  return stream;
}

const jobPath = (id, rest = "") => `jobs/${encodeURIComponent(id)}${rest}`;

async function call(path, body) {
  const options = { headers: { accept: "application/json" }, signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  try {
    const response = await fetch(path, options);
    const value = await response.json().catch(unlessCut);
    if (response.ok && value !== null) return value;
    throw new Refusal(wordsOf(value, response.status));
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw new Unreachable("The server does not answer.");
  }
}

// An answer that is no JSON is still an answer; one that broke off is none.
function unlessCut(error) {
  if (error instanceof SyntaxError) return null;
  throw error;
}

// A problem by RFC 9457 says what is wrong in general, what it was here, and in which part of the request.
function wordsOf(problem, status) {
  const { title, detail, errors } = problem ?? {};
  const parts = Array.isArray(errors) ? errors.map(({ at, why }) => `${[at].flat().at(-1)}: ${why}`) : [detail];
  const said = [title, parts.filter(Boolean).join("; ")].filter((text) => typeof text === "string" && text);
  return said.length ? `${said.join(": ")}.` : `The server could not do that: it answered ${status}.`;
}
