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
