"""As light or dark as the Airflow around it: what every quality page has in its head."""

# Airflow keeps there what somebody has chosen, and follows the system without it; a page by itself follows the system, too.
THEME = """<script>
function followAirflow() {
  try {
    const theme = window !== parent && localStorage.getItem("theme");
    document.documentElement.style.colorScheme = theme === "dark" || theme === "light" ? theme : "";
  } catch { /* not allowed to ask: the system's */ }
}
addEventListener("storage", followAirflow);
followAirflow();
</script>"""
