// The study plan page: asks for a plan, follows its job, shows its cards. Text from the server is only ever put in by
// textContent.

import { LIVE, Refusal, Unreachable, cancel, follow, identify, look, newest, submit } from "./api.js";
import { draw } from "./cards.js";

const TASK = "study_plan";
const BEAT_MS = 5000;
const RETRY_MS = 2000;
const STAGES = ["load", "chunk", "embed", "write cards", "check cards", "call back"];

const element = (id) => document.getElementById(id);
const project = new URLSearchParams(location.search).get("project") || document.body.dataset.project;
const page = {
  identity: null, // what makes requests for this project equal
  job: null, // the job that is shown
  following: null, // the job whose events come in, and their stream
  joined: null, // the job that answered a request of this page though it was there before, and how
  crash: null, // how many calls were kept when the job last lost its worker
  asked: null, // the id of the job whose cancel was asked for
  shown: null, // the id of the job whose cards are on the page
  heard: null, // when the server last answered
  lost: false, // whether it does not answer now
  refused: "", // what the refusal on the page was about
  spoken: "", // what was last said to screen readers
  metered: 0, // how often the meter was asked for
  timer: 0,
};

// -- what the user can do

async function onGenerate() {
  await attempt("ask", async () => {
    const { outcome, job } = await submit(TASK, { project });
    if (outcome !== "admitted") page.joined = { id: job.id, outcome, duplicates: job.duplicate_count };
    learn(job);
  });
  beat();
}

async function onCancel() {
  const { id } = page.job;
  if (asked(page.job)) return;
  page.asked = id;
  render(page.job);
  const heard = await attempt("cancel", async () => learn(await cancel(id)));
  if (!heard) page.asked = null;
  render(page.job);
}

// -- keeping up with the server

// Looks for the project's newest job while none is followed, and at the meter always: so a server that has gone is
// noticed, also one that leaves its connections open.
async function beat() {
  if (document.hidden) return;
  await (page.following ? readMeter() : refresh());
  clearTimeout(page.timer);
  page.timer = setTimeout(beat, page.lost ? RETRY_MS : BEAT_MS);
}

async function refresh() {
  await attempt("look", async () => {
    page.identity ??= await identify(TASK, { project });
    const job = await newest(page.identity);
    if (!page.following) show(job);
  });
  await readMeter();
}

async function readMeter() {
  const turn = ++page.metered;
  await attempt("meter", async () => {
    const meter = await look("meter");
    if (turn === page.metered) renderMeter(meter);
  });
}

// An answer to a request may be older than what the stream has told meanwhile; an end is final.
function learn(job) {
  if (page.following?.id === job.id && LIVE.has(job.state)) render(page.job);
  else show(job);
}

function show(job) {
  noteCrash(job, page.job);
  page.job = job;
  render(job);
  keepUp();
}

function keepUp() {
  const id = LIVE.has(page.job?.state) && !document.hidden ? page.job.id : null;
  if (id === (page.following?.id ?? null)) return;
  page.following?.stream.close();
  page.following = id && { id, stream: follow(id, { seen: onSeen, lost: onLost }) };
}

function onSeen(job) {
  onHeard();
  if (page.following?.id === job.id) show(job);
  readMeter();
}

function onLost({ over }) {
  if (over) page.following = null;
  onUnheard();
}

async function attempt(what, work) {
  try {
    await work();
    onHeard();
    if (page.refused === what) say("error", "");
    return true;
  } catch (error) {
    report(what, error);
    return false;
  }
}

function report(what, error) {
  if (error instanceof Unreachable) return onUnheard();
  if (error instanceof Refusal) onHeard();
  else console.error(error);
  page.refused = what;
  say("error", error instanceof Refusal ? error.message : "Something on this page went wrong. Please reload it.");
}

function onHeard() {
  page.heard = new Date();
  page.lost = false;
  say("lost", "");
  document.body.classList.remove("stale");
}

function onUnheard() {
  if (page.lost) return;
  page.lost = true;
  const said = page.heard ? ` Below is what it said at ${page.heard.toLocaleTimeString()}.` : "";
  say("lost", `The server does not answer.${said} Trying again…`);
  document.body.classList.add("stale");
  clearTimeout(page.timer);
  page.timer = setTimeout(beat, RETRY_MS);
}

function noteCrash(job, before) {
  if (!job?.crashes) page.crash = null;
  else if (before?.id !== job.id) page.crash = { kept: null };
  else if (job.crashes > before.crashes) page.crash = { kept: before.progress?.done ?? 0 };
}

// -- drawing

function say(id, text) {
  const target = element(id);
  if (target.textContent !== text) target.textContent = text;
  target.hidden = !text;
}

function put(id, value) {
  const text = String(value);
  if (element(id).textContent !== text) element(id).textContent = text;
}

const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const short = (id) => id.slice(0, 8);
const asked = (job) => job.cancel_requested || page.asked === job.id;

function render(job) {
  renderButtons(job);
  renderFacts(job);
  renderProgress(job);
  renderResult(job);
  say("duplicate", joinedNote(job));
  say("crash", crashNote(job));
  say("reason", stateNote(job));
  announce(job);
}

function renderButtons(job) {
  const live = LIVE.has(job?.state);
  const button = element("cancel");
  if (!live && document.activeElement === button) element("generate").focus();
  button.hidden = !live;
  button.setAttribute("aria-disabled", live && asked(job));
  put("cancel", live && asked(job) ? "Canceling…" : "Cancel");
}

function renderFacts(job) {
  element("facts").hidden = !job;
  if (!job) return;
  element("state").dataset.state = job.state;
  element("job-id").title = job.id;
  put("state", job.state);
  put("job-id", short(job.id));
  put("calls", job.progress?.total ? `${job.progress.done} of ${job.progress.total}` : "–");
  put("attempt", job.attempt);
  put("duplicates", job.duplicate_count);
}

function renderProgress(job) {
  const percent = percentOf(job);
  const stopped = job?.state === "failed" || job?.state === "canceled";
  const bar = element("bar");
  put("percent", `${percent}%`);
  bar.setAttribute("aria-valuenow", percent);
  bar.style.setProperty("--done", `${percent}%`);
  bar.classList.toggle("stopped", stopped);
  renderStages(job, stopped);
}

function renderStages(job, stopped) {
  const current = job?.state === "completed" ? STAGES.length : stageOf(job);
  [...element("stages").children].forEach((item, at) => {
    item.className = at < current ? "done" : at > current ? "" : stopped ? "stopped" : "current";
    if (at === current) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
  });
}

function percentOf(job) {
  if (job?.state === "completed") return 100;
  const { done = 0, total = 0 } = job?.progress ?? {};
  return total > 0 ? Math.min(100, Math.max(0, Math.floor((100 * done) / total))) : 0;
}

function stageOf(job) {
  const stage = job?.progress?.stage ?? "";
  return stage === "done" ? STAGES.length : STAGES.indexOf(stage);
}

function renderResult(job) {
  const done = job?.state === "completed";
  element("result").hidden = !done;
  if (!done || page.shown === job.id) return;
  const { cards, rejected } = job.result;
  draw(element("cards"), element("card"), cards, (answer) => put("live", `Answer: ${answer}`));
  put("count", `${count(cards.length, "card")}${rejected ? `, ${rejected} rejected by the check` : ""}`);
  page.shown = job.id;
}

function joinedNote(job) {
  if (!job || page.joined?.id !== job.id) return "";
  const name = short(job.id);
  if (page.joined.outcome === "replayed") return `This plan was already written: job ${name} answers again.`;
  if (!LIVE.has(job.state)) return `You had joined job ${name}: no second job was started for your request.`;
  const requests = 1 + Math.max(job.duplicate_count, page.joined.duplicates);
  return `This plan is already being written: you joined job ${name}. ${requests} requests, one job.`;
}

function crashNote(job) {
  if (!job || !page.crash) return "";
  const kept = page.crash.kept === null ? "paid calls kept" : `${count(page.crash.kept, "paid call")} kept`;
  const lost = job.crashes > 1 ? `Worker lost ${job.crashes} times` : "Worker lost";
  if (job.state === "running" || job.state === "completed") return `${lost}, resumed: ${kept}.`;
  return LIVE.has(job.state) ? `${lost}: ${kept}, waiting for another worker.` : `${lost}.`;
}

function stateNote(job) {
  if (!job) return "One job, six stages. Press the button; then press it again.";
  if (LIVE.has(job.state) && job.cancel_requested) return "Asked to stop: the worker does so after the call that is under way.";
  if (job.state === "completed") return duration(job);
  if (job.state === "canceled") return `${sentence("Canceled", job.reason)} ${finished(job)}`;
  if (job.state === "failed") return sentence("Failed", job.reason);
  return job.state === "retrying" && job.reason ? sentence("To be tried again", job.reason) : "";
}

function finished({ attempt, progress }) {
  if (!attempt) return "No worker had begun, nothing was paid.";
  return progress?.total ? `${progress.done} of ${count(progress.total, "call")} had been made.` : "";
}

function sentence(what, why) {
  const reason = why.replace(/\.$/, "");
  return reason.toLowerCase().startsWith(what.toLowerCase()) ? `${capital(reason)}.` : `${what}: ${reason}.`;
}

function duration(job) {
  const seconds = (Date.parse(job.finished_at) - Date.parse(job.created_at)) / 1000;
  return `Written in ${seconds.toFixed(1)} seconds.`;
}

function announce(job) {
  const at = STAGES[stageOf(job)];
  const text = !job ? "" : job.state === "running" && at ? `Running: ${at}` : `Job ${job.state}`;
  if (text === page.spoken) return;
  page.spoken = text;
  put("live", text);
}

function renderMeter(meter) {
  const calls = { paid: meter.provider_calls, without: meter.provider_calls_without };
  const most = Math.max(calls.paid, calls.without, 1);
  for (const [id, number] of Object.entries(calls)) {
    put(id, number);
    element(`${id}-gauge`).style.setProperty("--part", `${(100 * number) / most}%`);
  }
  put("saved", savedNote(meter.requests, calls.without - calls.paid));
  say("waiting", waitingNote(meter.waiting));
}

function waitingNote(waiting) {
  return Object.entries(waiting).map(([reason, copies]) => `To print: ${copies}. Each ${reason}.`).join(" ");
}

function savedNote(requests, saved) {
  if (!requests) return "Nobody has asked yet.";
  const sum = LIVE.has(page.job?.state) ? "still counting" : `${count(Math.max(0, saved), "call")} saved`;
  return `${count(requests, "request")}, ${sum}.`;
}

// -- the start

const name = capital(project.replace(/[-_]+/g, " ").trim());
put("project", name);
document.title = `${name} · onejob`;
render(null);
element("generate").addEventListener("click", onGenerate);
element("cancel").addEventListener("click", onCancel);
document.addEventListener("visibilitychange", () => {
  keepUp();
  beat();
});
beat();
