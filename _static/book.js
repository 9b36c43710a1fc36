// What the theme leaves to be desired: names that say what is seen, and paper that is white.
document.addEventListener("DOMContentLoaded", () => {
  // A name that differs from the visible text hides it from whoever speaks to the page.
  for (const named of document.querySelectorAll("summary[aria-label], .search-button-field"))
    named.removeAttribute("aria-label");
  // The icons' tooltips count as the button's text.
  for (const icon of document.querySelectorAll(".theme-switch-button [title]"))
    icon.removeAttribute("title");
  for (const list of document.querySelectorAll(".citation-list[role]"))
    list.removeAttribute("role");
});

let shown;
addEventListener("beforeprint", () => {
  shown = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
});
addEventListener("afterprint", () => (document.documentElement.dataset.theme = shown));
