// The page of the study-plan demo: asks for a plan, follows its job, shows its cards. Text from the server is only ever
// put in by textContent.

const POLL_MS = 400;
const RETRY_MS = 2000;
const TIMEOUT_MS = 10000;
const LIVE = new Set(["queued", "running", "retrying"]);
const STAGES = ["load", "chunk", "embed", "write cards", "check cards", "call back"];
const BLANK = "____";

const element = (id) => document.getElementById(id);
const project = new URLSearchParams(location.search).get("project") || document.body.dataset.project;
const page = {
  job: null, // the job that the page follows
  joined: null, // the job that answered a request of this page though it was there before, and how
  crash: null, // how many steps were kept when the job last lost its worker
  canceling: null, // the id of the job whose cancel was asked for
  shown: null, // the id of the job whose cards are on the page
  failing: "", // which kind of call the error on the page belongs to
  stage: "", // what was last said to screen readers
  timer: 0,
  watching: false,
};

// -- talking to the server

class Refusal extends Error {}
class Unreachable extends Refusal {}

async function call(path, body) {
  const options = { headers: { accept: "application/json" }, signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options).catch(() => {
    throw new Unreachable("The server cannot be reached right now.");
  });
  return response.ok ? response.json() : refuse(response);
}

async function refuse(response) {
  const problem = await response.json().catch(() => ({}));
  const told = [problem.detail, problem.title].find((text) => typeof text === "string" && text);
  throw new Refusal(told || `The server could not do that (it answered ${response.status}). Please try again.`);
}

const jobPath = (id, rest = "") => `api/jobs/${encodeURIComponent(id)}${rest}`;

async function attempt(kind, work) {
  try {
    await work();
    if (page.failing === kind) say("error", "");
    return true;
  } catch (error) {
    report(kind, error);
    return false;
  }
}

function report(kind, error) {
  const told = error instanceof Refusal ? error.message : "Something on this page went wrong. Please reload it.";
  if (!(error instanceof Refusal)) console.error(error);
  page.failing = error instanceof Unreachable ? "follow" : kind;
  say("error", `${told}${kind === "follow" ? " Trying again…" : ""}`);
}

// -- what the user can do

async function generate() {
  await attempt("ask", async () => {
    const { job, outcome } = await call("api/plans", { project });
    if (outcome !== "admitted") page.joined = { id: job.id, outcome };
    await show(job);
  });
  follow(true);
}

async function cancel() {
  const { id } = page.job;
  if (page.canceling) return;
  page.canceling = id;
  renderButtons(page.job);
  const heard = await attempt("ask", async () => show(await call(jobPath(id, "/cancel"), {})));
  if (!heard) page.canceling = null;
  renderButtons(page.job);
}

// -- following a job

function refresh() {
  return watch(async () => show((await call(`api/plans/${encodeURIComponent(project)}`)).job));
}

function poll() {
  const { id } = page.job;
  return watch(async () => {
    const job = await call(jobPath(id));
    if (page.job.id === id) await show(job);
  });
}

async function watch(look) {
  if (page.watching) return;
  page.watching = true;
  const heard = await attempt("follow", look);
  page.watching = false;
  follow(heard);
}

function follow(heard) {
  clearTimeout(page.timer);
  if (document.hidden) return;
  if (!heard) page.timer = setTimeout(refresh, RETRY_MS);
  else if (LIVE.has(page.job?.state)) page.timer = setTimeout(poll, POLL_MS);
}

async function show(job) {
  noteCrash(job, page.job);
  page.job = job;
  render(job);
  renderMeter(await call("api/meter"));
  if (job?.state === "completed") await showCards(job);
  else hideCards();
}

async function showCards(job) {
  if (page.shown === job.id) return;
  page.shown = job.id;
  try {
    renderCards(await call(jobPath(job.id, "/cards")));
  } catch (error) {
    page.shown = null;
    throw error;
  }
}

function hideCards() {
  page.shown = null;
  element("result").hidden = true;
}

function noteCrash(job, before) {
  if (!job?.crashes) page.crash = null;
  else if (before?.id !== job.id) page.crash = { kept: null };
  else if (job.crashes > before.crashes) page.crash = { kept: (job.state === "running" ? before : job).steps };
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
const short = (id) => (id.length > 10 ? `${id.slice(0, 8)}…` : id);

function render(job) {
  renderButtons(job);
  renderFacts(job);
  renderProgress(job);
  say("duplicate", joinedNote(job));
  say("crash", crashNote(job));
  say("reason", endNote(job));
  announce(job);
}

function renderButtons(job) {
  const live = LIVE.has(job?.state);
  const button = element("cancel");
  if (!live && document.activeElement === button) element("generate").focus();
  if (!live || page.canceling !== job.id) page.canceling = null;
  button.hidden = !live;
  button.setAttribute("aria-disabled", page.canceling !== null);
  put("cancel", page.canceling ? "Canceling…" : "Cancel");
}

function renderFacts(job) {
  element("facts").hidden = !job;
  if (!job) return;
  element("state").dataset.state = job.state;
  element("job-id").title = job.id;
  put("state", job.state);
  put("job-id", short(job.id));
  for (const fact of ["attempt", "steps", "duplicates"]) put(fact, job[fact]);
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
  const stage = String(job?.progress?.stage ?? "").toLowerCase().replace(/[-_]/g, " ");
  return stage === "done" ? STAGES.length : STAGES.indexOf(stage);
}

function joinedNote(job) {
  if (!job || page.joined?.id !== job.id) return "";
  const name = short(job.id);
  if (page.joined.outcome === "replayed") return `This plan was already written: job ${name} answers again.`;
  if (LIVE.has(job.state)) return `This plan is already being written: you joined job ${name}, attempt ${job.attempt}.`;
  return `You had joined job ${name}: no second job was started for your request.`;
}

function crashNote(job) {
  if (!job || !page.crash) return "";
  const kept = page.crash.kept === null ? "finished steps kept" : `${count(page.crash.kept, "step")} kept`;
  const lost = job.crashes > 1 ? `Worker lost ${job.crashes} times` : "Worker lost";
  if (job.state === "running" || job.state === "completed") return `${lost}, resumed: ${kept}.`;
  return LIVE.has(job.state) ? `${lost}: ${kept}, waiting for another worker.` : `${lost}: ${kept}.`;
}

function endNote(job) {
  if (!job) return "One job, six stages. Press the button; then press it again.";
  if (job?.state === "completed") return duration(job);
  if (job?.state === "canceled") return sentence("Canceled", job.reason);
  if (job?.state === "failed") return sentence("Failed", job.reason);
  return job?.state === "retrying" && job.reason ? sentence("To be tried again", job.reason) : "";
}

function sentence(what, why) {
  const reason = String(why ?? "").replace(/\.$/, "");
  if (!reason || reason.toLowerCase() === what.toLowerCase()) return `${what}.`;
  return reason.toLowerCase().startsWith(what.toLowerCase()) ? `${capital(reason)}.` : `${what}: ${reason}.`;
}

function duration(job) {
  const seconds = (moment(job.finished_at) - moment(job.created_at)) / 1000;
  return seconds >= 0 ? `Written in ${seconds.toFixed(1)} seconds.` : "";
}

function moment(value) {
  return typeof value === "number" ? value * 1000 : Date.parse(value);
}

function announce(job) {
  const at = STAGES[stageOf(job)];
  const text = !job ? "" : job.state === "running" && at ? `Running: ${at}` : `Job ${job.state}`;
  if (text === page.stage) return;
  page.stage = text;
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
}

function savedNote(requests, saved) {
  if (!requests) return "Nobody has asked yet.";
  const sum = LIVE.has(page.job?.state) ? "still counting" : `${count(Math.max(0, saved), "call")} saved`;
  return `${count(requests, "request")}, ${sum}.`;
}

// -- the cards

function renderCards({ cards, rejected }) {
  element("cards").replaceChildren(...cards.map(cardItem));
  put("count", `${count(cards.length, "card")}${rejected ? `, ${rejected} rejected by the check` : ""}`);
  element("result").hidden = false;
}

function cardItem(card) {
  const item = element("card").content.firstElementChild.cloneNode(true);
  const parts = card.question.includes(BLANK) ? card.question.split(BLANK) : [`${card.question} `, ""];
  const line = item.querySelector(".question");
  line.append(...parts.flatMap((text, at) => (at > 0 ? [blank(), text] : [text])));
  item.querySelector(".source").textContent = card.source;
  item.querySelector("button").addEventListener("click", ({ currentTarget }) => turn(currentTarget, card.answer));
  return item;
}

function blank() {
  const made = document.createElement("span");
  made.className = "blank";
  made.textContent = BLANK;
  return made;
}

function turn(button, answer) {
  const open = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", open);
  button.querySelector(".reveal").textContent = open ? "Hide answer" : "Show answer";
  for (const gap of button.querySelectorAll(".blank")) gap.textContent = open ? answer : BLANK;
  if (open) put("live", `Answer: ${answer}`);
}

// -- the start

const name = capital(project.replace(/[-_]+/g, " ").trim());
put("project", name);
document.title = `${name} · onejob`;
element("generate").addEventListener("click", generate);
element("cancel").addEventListener("click", cancel);
document.addEventListener("visibilitychange", () => {
  clearTimeout(page.timer);
  if (!document.hidden) refresh();
});
refresh();
