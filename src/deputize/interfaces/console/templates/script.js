// Runs on pages that only show: times in the reader's zone, keys, and rows as they come. Pages with forms have no script.
"use strict";
const main = document.querySelector("main");
const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const showZone = (part) => part.querySelectorAll("time[datetime]").forEach((each) => {
  each.title = `${zone.format(new Date(each.dateTime))}, your time`;
  if (each.dataset.zone !== undefined && !each.dataset.shown) {
    each.dataset.shown = "1";
    each.after(` · ${zone.format(new Date(each.dateTime))} your time`);
  }
});
showZone(main);

const rows = () => [...main.querySelectorAll("tr[data-key]")];
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
