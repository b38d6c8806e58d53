// Runs on pages that only show: times in the reader's zone, keys, rows as they come, and a call as it goes on. Pages with
// forms have no script.
"use strict";
const main = document.querySelector("main");
const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const showZone = (part) => part.querySelectorAll("time[datetime]").forEach((each) => {
  const at = new Date(each.dateTime);
  each.title = `${zone.format(at)}, your time`;
  if (each.dataset.zone === undefined || each.dataset.shown || at.getTimezoneOffset() === 0) return;
  each.dataset.shown = "1";
  const own = document.createElement("span");
  own.className = "aside";
  own.textContent = each.dataset.zone === "clock" ? ` · ${clock.format(at)} here` : ` · ${zone.format(at)} your time`;
  each.after(own);
});
showZone(main);

const rows = () => [...main.querySelectorAll("[data-key]")];
const move = (step) => {
  const all = rows(), at = all.findIndex((each) => each.contains(document.activeElement));
  const row = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  if (row) row.querySelector("a").focus();
};
let prefix = false;
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing) return;
  const link = prefix && document.querySelector(`nav a[data-letter="${CSS.escape(event.key)}"]`);
  prefix = event.key === "g" && !prefix;
  if (link) link.click();
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "/") { event.preventDefault(); document.querySelector("input[type=search]").focus(); }
  else if (event.key === "?") { const keys = document.querySelector("#keys"); keys.open = !keys.open; }
});

// What the reader opened or points at stays so. A page that cannot be read any more is left as it is.
const follow = () => setTimeout(async () => {
  try {
    const answer = await fetch(location.href);
    if (!answer.ok || answer.redirected) return;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html"), part = next.querySelector("main");
    const opened = [...main.querySelectorAll("details")].map((each) => each.open);
    const focused = main.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const summary = [...main.querySelectorAll("summary")].indexOf(document.activeElement);
    part.querySelectorAll("details").forEach((each, index) => { each.open = opened[index]; });
    showZone(part);
    main.replaceChildren(...part.childNodes);
    document.title = next.title;
    if (focused) main.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    else main.querySelectorAll("summary")[summary]?.focus();
  } catch { /* The gateway restarts, perhaps. */ }
  if (main.querySelector("[data-follow]")) follow();
}, 2000);
if (main.querySelector("[data-follow]")) follow();

const list = main.querySelector("tbody[data-live]"), state = main.querySelector("[data-live-state]");
if (list) {
  const feed = new EventSource(list.dataset.live);
  feed.onopen = () => { state.textContent = "● live"; };
  feed.onerror = () => { state.textContent = feed.readyState === 2 ? "○ not live: reload for new calls" : "○ reconnecting"; };
  feed.addEventListener("end", () => { feed.close(); state.textContent = "○ not live: reload for new calls"; });
  feed.addEventListener("gap", () => { state.textContent = "● live: more than fit here, reload for all"; });
  feed.addEventListener("row", (event) => {
    const part = document.createElement("template");
    part.innerHTML = event.data;
    const row = part.content.querySelector("tr"), old = list.querySelector(`tr[data-key="${CSS.escape(row.dataset.key)}"]`);
    const focused = old && old.contains(document.activeElement);
    showZone(part.content);
    if (old) old.replaceWith(row); else list.prepend(row);
    if (focused) row.querySelector("a").focus();
    document.querySelectorAll("[data-when-empty]").forEach((each) => each.remove());
    while (list.rows.length > 200) list.lastElementChild.remove();
  });
}
