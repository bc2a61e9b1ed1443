// Before the page is drawn: the theme that the reader has chosen. Browsers may forbid storage to files.
try {
  document.body.dataset.theme = localStorage.getItem("theme") || "auto";
} catch {
  document.body.dataset.theme = "auto";
}
