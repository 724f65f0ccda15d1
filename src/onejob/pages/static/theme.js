// Sets the theme and the time zone before the page is drawn.
(() => {
  const theme = localStorage.getItem("onejob-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "";
  const known = document.cookie.split("; ").includes(`onejob_zone=${encodeURIComponent(zone)}`);
  if (zone && !known) document.cookie = `onejob_zone=${encodeURIComponent(zone)}; path=/; max-age=31536000; samesite=strict`;
})();
