// Sets the theme before the page is drawn, and tells the server the time zone: the first page is loaded again in it,
// unless it answers a form, which must never be sent again.
(() => {
  const root = document.documentElement;
  const theme = localStorage.getItem("onejob-theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const cookie = `onejob_zone=${encodeURIComponent(zone || "UTC")}`;
  const isKnown = () => document.cookie.split("; ").includes(cookie);
  if (isKnown()) return;
  document.cookie = `${cookie}; path=${root.dataset.base || "/"}; max-age=31536000; samesite=strict`;
  if (isKnown() && "again" in root.dataset) location.reload();
})();
