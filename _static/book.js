// What the theme leaves to be desired: names that say what is seen, and paper that is white.
document.addEventListener("DOMContentLoaded", () => {
  // A name that differs from the visible text hides it from whoever speaks to the page.
  for (const named of document.querySelectorAll("summary[aria-label], .search-button-field"))
    named.removeAttribute("aria-label");
  // The titles of the icons count as the button's text.
  for (const button of document.querySelectorAll(".theme-switch-button"))
    button.setAttribute("aria-label", "Color mode: Light, Dark, System Settings");
  for (const list of document.querySelectorAll(".citation-list[role]"))
    list.removeAttribute("role");
});

let shown;
addEventListener("beforeprint", () => {
  shown = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
});
addEventListener("afterprint", () => (document.documentElement.dataset.theme = shown));
