"""What every quality page has in its head: what it may load, and a script that makes it as light or dark as the Airflow around it."""

# No page has a script or style of its own in it: whatever text gets into a page, the browser runs and loads only the files beside it.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'"

THEME_FILE = "theme.js"
# Airflow keeps there what somebody has chosen, and follows the system without it; a page by itself follows the system, too.
THEME = """function followAirflow() {
  try {
    const theme = window !== parent && localStorage.getItem("theme");
    document.documentElement.style.colorScheme = theme === "dark" || theme === "light" ? theme : "";
  } catch { /* not allowed to ask: the system's */ }
}
addEventListener("storage", followAirflow);
followAirflow();
"""
