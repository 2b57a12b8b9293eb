// Begins to load the chart library once the server runs the page's script: before that it would
// hold up the connection, and after it the first chart would wait. One that fails is taken out
// again, for the first chart to try anew.
(() => {
  const looked = setInterval(() => {
    const app = document.querySelector("[data-testid=stApp]");
    if (app?.dataset.testScriptState !== "running") return;
    clearInterval(looked);
    if (document.querySelector("script[data-chart-library]")) return;
    const script = document.createElement("script");
    script.src = document.querySelector("link[data-chart-library]").href;
    script.dataset.chartLibrary = "";
    script.onerror = () => script.remove();
    document.head.appendChild(script);
  }, 20);
})();

// A link of the menu to the page that is open begins that page anew: without this the server keeps
// what was chosen on it (a node, a view, filters), and the link would seem to do nothing. The
// frame's window stays, as with links to other pages.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-testid^=stTopNav]");
  const plain = !(event.button || event.ctrlKey || event.metaKey || event.shiftKey);
  if (!link || !plain || link.pathname !== location.pathname) return;
  const frame = ["range", "from", "to", "tz", "live"];
  const given = [...new URLSearchParams(location.search)];
  const kept = given.filter(([name]) => frame.includes(name));
  if (kept.length === given.length) return; // nothing of the page's own
  event.preventDefault();
  event.stopImmediatePropagation();
  const query = new URLSearchParams(kept).toString();
  location.assign(link.pathname + (query && `?${query}`));
}, true);
