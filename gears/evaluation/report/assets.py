"""Style sheet and script of the page: no outside file, readable without script, in print, and when narrow."""

STYLE = """
:root { --ink: #1b1b1b; --soft: #555; --line: #d4d4d4; --wash: #f5f6f8; --link: #00548a; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 1rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 1.1rem 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .3rem; }
p { max-width: 75ch; margin: .4rem 0; overflow-wrap: anywhere; }
.verdict { font-size: 1.05rem; font-weight: 600; max-width: none; padding: .6rem .9rem; margin: .5rem 0;
  border-left: .45rem solid #0072b2; background: #eaf3fa; }
.verdict.beaten { border-left-color: #d55e00; background: #fdf0e7; }
.soft, small, figcaption { color: var(--soft); }
small { font-size: .78rem; font-weight: 400; white-space: nowrap; }
nav a { color: var(--link); margin-right: 1rem; white-space: nowrap; }
nav { line-height: 1.9; }
.block { margin: .8rem 0 1.4rem; }
.bar { display: flex; gap: 1rem; align-items: baseline; justify-content: space-between; flex-wrap: wrap; }
.caption { font-weight: 600; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px; }
.scroll:focus-visible, .picture:focus-visible, button:focus-visible, a:focus-visible {
  outline: 3px solid #0072b2; outline-offset: 1px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: left; vertical-align: baseline; border-bottom: 1px solid #e6e6e6; }
thead th { background: var(--wash); border-bottom: 1px solid var(--line); vertical-align: bottom; }
thead th small { display: block; }
tbody th { font-weight: 500; white-space: nowrap; }
td.number { text-align: right; white-space: nowrap; }
td.number small { display: block; }
tbody tr:hover { background: var(--wash); }
tr.model th, tr.model td { background: #eaf3fa; font-weight: 600; }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: left; }
button.sort { font-weight: 600; white-space: nowrap; }
thead th.number { text-align: right; }
tbody th, thead th:first-child { position: sticky; left: 0; background: #fff; }
thead th:first-child { background: var(--wash); }
tbody tr:hover th { background: var(--wash); }
button.sort::after { content: " \\2195"; color: #767676; }
th[aria-sort=ascending] button.sort::after { content: " \\2191"; color: var(--ink); }
th[aria-sort=descending] button.sort::after { content: " \\2193"; color: var(--ink); }
button.copy { color: var(--link); text-decoration: underline; font-size: .85rem; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--link); font-weight: 600; padding: .15rem 0; }
figure { margin: .8rem 0 1.4rem; }
.picture { overflow-x: auto; }
.picture img { max-width: 100%; height: auto; display: block; }
figcaption { font-size: .85rem; max-width: 75ch; }
dl { display: grid; grid-template-columns: minmax(9rem, max-content) 1fr; gap: .25rem 1rem; font-size: .9rem; }
dt { font-weight: 600; overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 640px) { main { padding: .6rem .7rem 3rem; } dl { grid-template-columns: 1fr; }
  .picture img { max-width: none; width: 680px; } dd { margin-bottom: .5rem; } th, td { padding: .28rem .4rem; } }
@media print { button.copy, nav { display: none; } .scroll { overflow: visible; border: 0; } }
"""

SCRIPT = """
"use strict";
function valueOf(cell) {
  const given = cell.dataset.value;
  if (given === undefined) return cell.textContent.trim();
  return given === "" ? null : Number(given);
}
function textOf(cell) {
  const given = cell.dataset.value;
  if (given !== undefined) return given === "" ? "NaN" : given;
  const copy = cell.cloneNode(true);
  copy.querySelectorAll("small").forEach(part => part.remove());
  return copy.textContent.trim();
}
document.querySelectorAll("button.sort").forEach(button => button.addEventListener("click", () => {
  const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
  const column = Array.from(head.parentNode.children).indexOf(head);
  const rising = head.getAttribute("aria-sort") !== "ascending";
  head.parentNode.querySelectorAll("th").forEach(other => other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  const rows = Array.from(body.rows).map((row, place) => [valueOf(row.cells[column]), place, row]);
  rows.sort((a, b) => {
    if (a[0] === null || b[0] === null) return a[0] === b[0] ? a[1] - b[1] : a[0] === null ? 1 : -1;
    const order = typeof a[0] === "number" && typeof b[0] === "number"
      ? a[0] - b[0] : String(a[0]).localeCompare(String(b[0]), "en", {numeric: true});
    return (rising ? order : -order) || a[1] - b[1];
  });
  rows.forEach(entry => body.appendChild(entry[2]));
}));
document.querySelectorAll("button.copy").forEach(button => button.addEventListener("click", async () => {
  const table = button.closest(".block").querySelector("table");
  const text = Array.from(table.rows).map(row => Array.from(row.cells).map(textOf).join("\\t")).join("\\n");
  try { await navigator.clipboard.writeText(text); } catch (error) {
    const area = document.createElement("textarea");
    area.value = text; document.body.appendChild(area); area.select();
    document.execCommand("copy"); area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy table"; }, 1500);
}));
"""
