// What the theme leaves to be desired: names that say what is seen, and paper that is white.
document.addEventListener("DOMContentLoaded", () => {
  // A name that differs from the visible text hides it from whoever speaks to the page.
  for (const named of document.querySelectorAll("summary[aria-label], .search-button-field"))
    named.removeAttribute("aria-label");
  for (const fold of document.querySelectorAll("summary"))
    if (!fold.textContent.trim()) fold.setAttribute("aria-label", "Further page of this chapter");
  // The titles of the icons count as the button's text.
  for (const button of document.querySelectorAll(".theme-switch-button"))
    button.setAttribute("aria-label", "Color mode: Light, Dark, System Settings");
  // A role that ARIA has given up; the list's own would then be without its items.
  for (const entry of document.querySelectorAll(".citation-list[role], [role=doc-biblioentry]"))
    entry.removeAttribute("role");
  // A corner of a table is no heading; what it spans, it spans as a cell.
  for (const head of document.querySelectorAll("th"))
    if (!head.textContent.trim()) {
      const cell = document.createElement("td");
      for (const { name, value } of head.attributes) cell.setAttribute(name, value);
      head.replaceWith(cell);
    }
  const title = document.querySelector(".sidebar-primary-item:has(.logo)");
  title?.setAttribute("role", "region");
  title?.setAttribute("aria-label", "Title");
  // A cell of words may break into lines, one of numbers may not; a long name gets some room.
  for (const cell of document.querySelectorAll(".lrp-table :is(td, th)"))
    cell.classList.toggle("long", cell.textContent.length > (cell.tagName === "TD" ? 32 : 20));
  // A browser breaks the line between a formula and the comma after it.
  for (const formula of document.querySelectorAll("span.math")) {
    const after = formula.nextSibling;
    const [mark] = /^[^\s\w([–—]+/.exec(after?.nodeType === Node.TEXT_NODE ? after.data : "") ?? [];
    if (!mark) continue;
    after.deleteData(0, mark.length);
    const kept = document.createElement("span");
    kept.className = "formula-and-mark";
    formula.replaceWith(kept);
    kept.append(formula, mark);
  }
});

// What scrolls says so, until it is at its end, and can be reached by keyboard; the theme sees to that
// where no figure is around a table. It is read aloud as a whole, where there is nothing to scroll.
const SCROLLING = `.cell_output > .output:not(:has(.lrp-interactive)), .cell_output figure > .output,
  .pst-scrollable-table-container`;
const hints = new Map();
function reach() {
  for (const box of document.querySelectorAll(SCROLLING)) {
    const wide = box.scrollWidth > box.clientWidth;
    if (box.matches("figure > *")) box.tabIndex = wide ? 0 : -1;
    if (wide && !hints.has(box)) {
      const hint = document.createElement("p");
      hint.className = "goes-on";
      hint.ariaHidden = "true";
      hint.textContent = "scroll →";
      box.before(hint);
      box.addEventListener("scroll", reach);
      hints.set(box, hint);
    }
    const left = box.scrollWidth - box.clientWidth - box.scrollLeft;
    if (hints.has(box)) {
      hints.get(box).hidden = !wide;
      hints.get(box).classList.toggle("at-end", left < 2);
    }
  }
}
// A table can become wide or narrow after its window did.
const sizes = new ResizeObserver(reach);
addEventListener("load", () => {
  for (const box of document.querySelectorAll(SCROLLING))
    for (const part of [box, ...box.children]) sizes.observe(part);
});

let shown;
addEventListener("beforeprint", () => {
  shown = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
});
addEventListener("afterprint", () => (document.documentElement.dataset.theme = shown));
