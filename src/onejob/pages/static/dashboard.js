// What the pages do beyond links and forms: live updates, relative times, keyboard, commands, theme and copying.
"use strict";

const base = document.documentElement.dataset.base;
const byId = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// --- times ----------------------------------------------------------------------------------------------------------

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function durationText(seconds) {
  let rest = Math.round(seconds);
  const words = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count) words.push(`${count} ${unit}`);
    else if (words.length) break;
    if (words.length === 2) break;
  }
  return words.join(" ") || "0 s";
}

function distanceText(seconds) {
  if (Math.abs(seconds) < 1) return "now";
  const text = durationText(Math.abs(seconds)).split(" ").slice(0, 2).join(" "); // the largest unit: the exact time is the title
  return seconds < 0 ? `${text} ago` : `in ${text}`;
}

let ahead = 0; // milliseconds by which the clock of the page's times is ahead of this browser's, which may be wrong

function readClock() {
  const now = Number(byId("page").dataset.now);
  if (now) ahead = now * 1000 - Date.now();
}

function showTimes() {
  const now = Date.now() + ahead;
  for (const time of all("time[datetime]")) {
    const seconds = (Date.parse(time.dateTime) - now) / 1000;
    time.textContent = time.hasAttribute("data-countdown") && seconds <= 0 ? "expired" : distanceText(seconds);
  }
}

// --- live updates -----------------------------------------------------------------------------------------------------

const SHORTEST_PAUSE = 2000; // milliseconds between two updates
const REFUSED_PAUSE = 5000; // milliseconds after which a stream is asked for again that was refused, which the browser leaves closed
let source = null;
let updatedAt = Date.now();
let failed = false;
let isPolled = false; // whether the server answers each question at once, as a WSGI server does, and ends the stream
let pending = null;
let isStale = false; // whether something has changed that the page does not show yet
let isSwapped = false; // whether the last update has succeeded, which its promise does not tell

function showUpdated() {
  const label = byId("updated");
  if (!label) return;
  label.hidden = false;
  label.classList.toggle("stale", failed);
  const age = durationText((Date.now() - updatedAt) / 1000);
  label.textContent = failed ? `Not connected, as of ${age} ago` : `Updated ${age} ago`;
}

function isBusy() {
  const active = document.activeElement;
  const isTyping = active && active.closest("#page") && active.matches("input:not([type=checkbox]), textarea, select");
  return isTyping || all("input[name=id]:checked").length > 0 || all("dialog[open]").length > 0 || Boolean(getSelection().toString());
}

function scheduleUpdate(wait = Math.max(0, updatedAt + SHORTEST_PAUSE - Date.now())) {
  isStale = true;
  if (pending === null) pending = setTimeout(() => { pending = null; update(); }, wait);
}

async function update() {
  if (document.hidden) return;
  if (isBusy()) { scheduleUpdate(SHORTEST_PAUSE); return; }
  isStale = false;
  isSwapped = false;
  await htmx.ajax("GET", location.pathname + location.search, { target: "#page", select: "#page", swap: "outerMorph", push: "false" });
  failed = isStale = !isSwapped;
  if (isSwapped) updatedAt = Date.now();
  prepare();
}

let focused = null; // the row that has the focus right before an update: it may have moved since that was asked for

document.addEventListener("htmx:before:swap", () => {
  const row = document.activeElement && document.activeElement.closest("[data-row]");
  focused = row ? row.id : null;
});

function connect() {
  const label = byId("updated");
  if (!label || source || document.hidden) return;
  const watched = label.dataset.live;
  const query = watched.startsWith("job:") ? `?job=${encodeURIComponent(watched.slice(4))}` : "";
  source = new EventSource(`${base}/live${query}`);
  source.addEventListener("change", (event) => { isPolled = event.lastEventId !== ""; scheduleUpdate(); });
  source.addEventListener("current", (event) => { isPolled = event.lastEventId !== ""; if (isStale) scheduleUpdate(); else updatedAt = Date.now(); });
  source.onopen = () => { failed = false; };
  source.onerror = () => {
    failed = !isPolled;
    isPolled = false;
    if (source.readyState === EventSource.CLOSED) { disconnect(); setTimeout(connect, REFUSED_PAUSE); }
  };
}

function disconnect() {
  if (source) source.close();
  source = null;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) { disconnect(); return; }
  connect();
  if (byId("updated")) scheduleUpdate();
});
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);

// --- rows -------------------------------------------------------------------------------------------------------------

const rows = () => all("[data-row]");

function focusRow(row) {
  for (const each of all("[data-row].current")) each.classList.remove("current");
  row.classList.add("current");
  row.tabIndex = -1;
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

function moveBy(step) {
  const found = rows();
  if (!found.length) return;
  const index = found.findIndex((row) => row.classList.contains("current"));
  focusRow(found[Math.min(Math.max(index + step, 0), found.length - 1)]);
}

function showSelected() {
  const count = all("input[name=id]:checked").length;
  for (const label of all("[data-shows=selected]")) label.textContent = count ? `${count} selected` : "";
}

document.addEventListener("change", (event) => {
  const target = event.target;
  if (target.dataset.selects === "all") for (const box of all("input[name=id]")) box.checked = target.checked;
  if (target.matches("input[name=id], [data-selects=all]")) showSelected();
});

// --- commands ---------------------------------------------------------------------------------------------------------

const PAGES = [
  ["Overview", "/", "o"], ["Jobs", "/jobs", "j"], ["Duplicates", "/duplicates", "d"], ["Dead letters", "/dead", "l"],
  ["Tasks", "/tasks", "t"], ["Workers", "/workers", "w"], ["Schedules", "/schedules", "s"],
];
const STATES = ["queued", "running", "retrying", "completed", "failed", "canceled"];
const commands = [
  ...PAGES.map(([name, path]) => [name, base + path]),
  ...STATES.map((state) => [`Jobs: ${state}`, `${base}/jobs?state=${state}`]),
];
let areTasksLoaded = false;
let chosen = 0;

async function loadTasks() {
  if (areTasksLoaded) return;
  areTasksLoaded = true;
  try {
    const response = await fetch(`${base}/palette?format=json`);
    const { tasks } = await response.json();
    commands.push(...tasks.map((task) => [`Jobs of ${task}`, `${base}/jobs?task=${encodeURIComponent(task)}`]));
    commands.push(...tasks.map((task) => [`Dead letters of ${task}`, `${base}/dead?task=${encodeURIComponent(task)}`]));
  } catch (error) {
    areTasksLoaded = false; // the pages and states are enough for now
  }
  showCommands();
}

function matching(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = commands.filter(([name]) => words.every((word) => name.toLowerCase().includes(word))).slice(0, 12);
  if (text.trim()) {
    found.push([`Find “${text.trim()}” in ids and arguments`, `${base}/find?q=${encodeURIComponent(text.trim())}`]);
  }
  return found;
}

function showCommands() {
  const list = byId("commands");
  const input = all("input", byId("palette"))[0];
  const found = matching(input.value);
  chosen = Math.min(chosen, Math.max(found.length - 1, 0));
  list.replaceChildren(...found.map(([name, path], index) => {
    const item = document.createElement("li");
    item.id = `command-${index}`;
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", String(index === chosen));
    item.dataset.path = path;
    item.textContent = name;
    return item;
  }));
  input.setAttribute("aria-activedescendant", found.length ? `command-${chosen}` : "");
}

function openPalette() {
  const palette = byId("palette");
  if (!palette || palette.open) return;
  chosen = 0;
  const input = all("input", palette)[0];
  input.value = "";
  palette.showModal();
  showCommands();
  input.focus();
  loadTasks();
}

function follow(path) { if (path) location.assign(path); }

function handlePaletteKey(event) {
  const count = byId("commands").children.length;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    chosen = (chosen + (event.key === "ArrowDown" ? 1 : count - 1)) % Math.max(count, 1);
    showCommands();
    event.preventDefault();
  } else if (event.key === "Enter") {
    event.preventDefault();
    const item = byId(`command-${chosen}`);
    follow(item && item.dataset.path);
  }
}

// --- keyboard ---------------------------------------------------------------------------------------------------------

let isAfterG = false;

function handleKey(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openPalette(); return; }
  // Until the page is painted again, the focus is still in a dialog that has just been closed.
  const target = event.target.closest("dialog:not([open])") ? document.body : event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("dialog")) return;
  if (target.matches("input:not([type=checkbox]), textarea, select")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const page = isAfterG && PAGES.find(([, , key]) => key === event.key);
  isAfterG = event.key === "g";
  if (page) { follow(base + page[1]); return; }
  const current = all("[data-row].current")[0];
  switch (event.key) {
    case "/": event.preventDefault(); if (byId("find")) byId("find").focus(); break;
    case "j": moveBy(1); break;
    case "k": moveBy(-1); break;
    case "?": if (byId("keys")) byId("keys").showModal(); break;
    case "x": { const box = current && all("input[name=id]", current)[0]; if (box) { box.checked = !box.checked; showSelected(); } break; }
    case "Enter": if (current && target === current) { const link = all("a", current)[0]; if (link) link.click(); } break;
  }
}

document.addEventListener("keydown", handleKey);

// --- buttons ------------------------------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  const command = event.target.closest("#commands li");
  if (command) follow(command.dataset.path);
  if (!button) return;
  if (button.dataset.opens === "palette") openPalette();
  if (button.dataset.toggles === "theme") {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("onejob-theme", root.dataset.theme);
  }
  if (button.dataset.copies) {
    await navigator.clipboard.writeText(byId(button.dataset.copies).textContent);
    const text = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = text; }, 1500);
  }
});

function prepare() {
  for (const hidden of all("[data-opens], [data-toggles], [data-selects]")) hidden.hidden = false;
  for (const button of all("[data-copies]")) button.hidden = !navigator.clipboard; // browsers have none without HTTPS
  showTimes();
  showSelected();
}

document.addEventListener("htmx:after:swap", () => { isSwapped = true; readClock(); if (focused && byId(focused)) focusRow(byId(focused)); prepare(); });
// What is no page of the dashboard, such as the error of a proxy, does not replace one.
document.addEventListener("htmx:after:request", (event) => { if (!event.detail.ctx.text.includes('id="page"')) event.preventDefault(); });
if (byId("palette")) {
  const input = all("input", byId("palette"))[0];
  input.addEventListener("input", () => { chosen = 0; showCommands(); });
  input.addEventListener("keydown", handlePaletteKey);
}
for (const tab of all(".main [aria-current]")) tab.scrollIntoView({ block: "nearest", inline: "center" });
readClock();
prepare();
connect();
showUpdated();
setInterval(() => { if (!document.hidden) { showTimes(); showUpdated(); } }, 1000);
