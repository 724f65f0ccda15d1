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
  joined: null, // what the server said when it answered a request with a job that was there already
  crash: null, // how many steps were kept when the job last lost its worker
  canceling: null, // the id of the job whose cancel was asked for
  shown: null, // the id of the job whose cards are on the page
  failing: "", // which kind of call the error on the page belongs to
  stage: "", // what was last said to screen readers
  timer: 0,
  polling: false,
};

// -- talking to the server

class Refusal extends Error {}

async function call(path, body) {
  const options = { headers: { accept: "application/json" }, signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options).catch(() => {
    throw new Refusal("The server cannot be reached right now.");
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
    if (page.failing === kind) report("", "");
    return true;
  } catch (error) {
    report(kind, error instanceof Refusal ? error.message : "Something on this page went wrong. Please reload it.");
    if (!(error instanceof Refusal)) console.error(error);
    return false;
  }
}

function report(kind, message) {
  page.failing = kind;
  say("error", message && kind === "follow" ? `${message} Trying again…` : message);
}

// -- what the user can do

function generate() {
  return attempt("ask", async () => {
    const { job, outcome } = await call("api/plans", { project });
    if (outcome === "admitted" && page.joined?.id !== job.id) page.joined = null;
    if (outcome !== "admitted") page.joined = { id: job.id, attempt: job.attempt, outcome };
    await show(job);
    await readMeter();
  });
}

async function cancel() {
  const { id } = page.job;
  page.canceling = id;
  renderButtons(page.job);
  const heard = await attempt("ask", async () => show(await call(jobPath(id, "/cancel"), {})));
  if (!heard) page.canceling = null;
  renderButtons(page.job);
}

// -- following a job

async function refresh() {
  const heard = await attempt("follow", async () => {
    const { job } = await call(`api/plans/${encodeURIComponent(project)}`);
    await Promise.all([show(job), readMeter()]);
  });
  if (!heard && !document.hidden) page.timer = setTimeout(refresh, RETRY_MS);
}

async function poll() {
  if (page.polling || document.hidden) return;
  page.polling = true;
  const { id } = page.job;
  const heard = await attempt("follow", async () => {
    const [job] = await Promise.all([call(jobPath(id)), readMeter()]);
    if (page.job.id === id) await show(job);
  });
  page.polling = false;
  follow(heard ? POLL_MS : RETRY_MS);
}

function follow(delay) {
  clearTimeout(page.timer);
  if (page.job && LIVE.has(page.job.state) && !document.hidden) page.timer = setTimeout(poll, delay);
}

async function show(job) {
  noteCrash(job);
  page.job = job;
  render(job);
  follow(POLL_MS);
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

function noteCrash(job) {
  const before = page.job?.id === job?.id ? page.job?.crashes ?? 0 : 0;
  if (!job?.crashes) page.crash = null;
  else if (job.crashes > before) page.crash = { kept: job.steps };
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
  const live = Boolean(job && LIVE.has(job.state));
  const button = element("cancel");
  if (!live && document.activeElement === button) element("generate").focus();
  if (!live) page.canceling = null;
  button.hidden = !live;
  button.disabled = live && page.canceling === job.id;
  button.textContent = button.disabled ? "Canceling…" : "Cancel";
}

function renderFacts(job) {
  element("state").dataset.state = job?.state ?? "";
  put("state", job?.state ?? "not started");
  put("job-id", job ? short(job.id) : "none");
  element("job-id").title = job?.id ?? "";
  put("attempt", job?.attempt ?? 0);
  put("steps", job?.steps ?? 0);
  put("duplicates", job?.duplicates ?? 0);
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
  const stage = job?.progress?.stage;
  return typeof stage === "string" ? STAGES.indexOf(stage.toLowerCase().replace(/[-_]/g, " ")) : -1;
}

function joinedNote(job) {
  if (!job || page.joined?.id !== job.id) return "";
  const name = short(job.id);
  if (page.joined.outcome === "replayed") return `This plan was already written: job ${name} answers again, and nothing new is paid.`;
  if (LIVE.has(job.state)) return `This plan is already being written: you joined job ${name}, attempt ${job.attempt}.`;
  return `You had joined job ${name}: no second job was started for your request.`;
}

function crashNote(job) {
  if (!job || !page.crash) return "";
  const kept = `${count(page.crash.kept, "step")} kept`;
  const lost = job.crashes > 1 ? `Worker lost ${job.crashes} times` : "Worker lost";
  if (job.state === "running" || job.state === "completed") return `${lost}, resumed: ${kept}.`;
  return LIVE.has(job.state) ? `${lost}: ${kept}, waiting for another worker.` : `${lost}: ${kept}.`;
}

function endNote(job) {
  if (job?.state === "completed") return duration(job);
  if (job?.state === "canceled") return sentence("Canceled", job.reason);
  if (job?.state === "failed") return sentence("Failed", job.reason);
  return job?.state === "retrying" ? sentence("Will be tried again", job.reason) : "";
}

const sentence = (what, why) => (why ? `${what}: ${String(why).replace(/\.$/, "")}.` : `${what}.`);

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

async function readMeter() {
  const meter = await call("api/meter");
  const { provider_calls: paid, provider_calls_without: without, requests } = meter;
  const most = Math.max(paid, without, 1);
  put("paid", paid);
  put("without", without);
  element("paid-gauge").style.setProperty("--part", `${(100 * paid) / most}%`);
  element("without-gauge").style.setProperty("--part", `${(100 * without) / most}%`);
  put("saved", savedNote(requests, without - paid));
}

function savedNote(requests, saved) {
  if (!requests) return "No request yet.";
  return saved > 0 ? `${count(requests, "request")}, ${count(saved, "call")} saved.` : `${count(requests, "request")}.`;
}

// -- the cards

function renderCards({ cards, rejected }) {
  element("cards").replaceChildren(...cards.map(cardItem));
  put("count", `${count(cards.length, "card")}${rejected ? `, ${rejected} rejected by the check` : ""}`);
  element("result").hidden = false;
}

function cardItem(card) {
  const button = make("button", "card", "");
  const blanks = [];
  const foot = make("span", "card-foot", "");
  const reveal = make("span", "reveal", "Show answer");
  button.type = "button";
  button.setAttribute("aria-pressed", "false");
  foot.append(make("span", "source", card.source), reveal);
  button.append(question(card, blanks), foot);
  button.addEventListener("click", () => turn(button, card, blanks, reveal));
  const item = document.createElement("li");
  item.append(button);
  return item;
}

function question(card, blanks) {
  const line = make("span", "question", "");
  card.question.split(BLANK).forEach((text, at) => {
    if (at > 0) blanks.push(make("span", "blank", BLANK));
    line.append(...(at > 0 ? [blanks.at(-1)] : []), text);
  });
  if (!blanks.length) {
    blanks.push(make("span", "blank", BLANK));
    line.append(" ", blanks[0]);
  }
  return line;
}

function turn(button, card, blanks, reveal) {
  const open = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(open));
  reveal.textContent = open ? "Hide answer" : "Show answer";
  blanks.forEach((blank) => {
    blank.textContent = open ? card.answer : BLANK;
    blank.classList.toggle("filled", open);
  });
  if (open) put("live", `Answer: ${card.answer}`);
}

function make(tag, name, text) {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}

// -- the start

function title(name) {
  const words = name.replace(/[-_]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

put("project", title(project));
document.title = `${title(project)} · onejob`;
element("generate").addEventListener("click", generate);
element("cancel").addEventListener("click", cancel);
document.addEventListener("visibilitychange", () => {
  clearTimeout(page.timer);
  if (!document.hidden) refresh();
});
refresh();
