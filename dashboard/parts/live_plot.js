// A chart that is updated in place: zoom, hidden legend entries and the DOM node survive.
// Updates that arrive while the pointer is held down wait until it is released.
const library = "./assets/plotly.min.js?v=";
const config = {
  responsive: true,
  displaylogo: false,
  scrollZoom: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};

// The document asks for the library early; where that failed its script was taken out again.
function ask(version) {
  const early = document.querySelector("script[data-chart-library]");
  if (early) return early;
  const script = document.createElement("script");
  script.src = library + version;
  script.dataset.chartLibrary = "";
  script.addEventListener("error", () => script.remove());
  return document.head.appendChild(script);
}

function load(version) {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  if (!window.conductorPlotly) {
    window.conductorPlotly = new Promise((done, failed) => {
      const script = ask(version);
      script.addEventListener("load", () => done(window.Plotly));
      script.addEventListener("error", () => {
        window.conductorPlotly = null;  // the next update tries again
        failed(new Error("the chart library could not be loaded"));
      });
    });
  }
  return window.conductorPlotly;
}

// Words in place of the chart, until there is one.
function say(host, words) {
  host.textContent = words;
  host.worded = true;
}

function unsay(host, plotly) {
  if (!host.worded) return;
  plotly.purge(host);
  host.replaceChildren();
  host.worded = false;
}

function wire(host) {
  const held = () => { host.held = true; };
  const released = () => {
    host.held = false;
    if (host.waiting) setTimeout(() => { const draw = host.waiting; host.waiting = null; draw && draw(); }, 50);
  };
  host.addEventListener("pointerdown", held);
  window.addEventListener("pointerup", released);
  host.unwire = () => window.removeEventListener("pointerup", released);
}

// Clicks on a cell of a hierarchy go to Python, which decides what is shown next; without anybody
// who listens, the library zooms by itself.
function listen(host) {
  if (host.listening || !host.on) return;
  host.listening = true;
  host.on("plotly_icicleclick", (event) => {
    if (!host.clicked) return true;
    const point = event.points[0];
    if (point) host.clicked(point.id);
    return false;
  });
}

export default function ({ data, parentElement, setTriggerValue }) {
  const host = parentElement.querySelector(".cd-plot");
  if (!host.unwire) wire(host);
  host.clicked = data.clicks ? (id) => setTriggerValue("clicked", id) : null;
  if (host.spec !== data.spec) {
    host.spec = data.spec;
    const figure = JSON.parse(data.spec);
    host.style.height = figure.layout.height + "px";
    host.setAttribute("aria-label", data.alt);
    const draw = () => load(data.version)
      .then((plotly) => {
        unsay(host, plotly);
        return plotly.react(host, figure.data, figure.layout, config);
      })
      .then(() => listen(host))
      .catch((error) => say(host, "Chart unavailable: " + error.message));
    if (!window.Plotly) say(host, "Loading the chart …");
    if (host.held) host.waiting = draw; else draw();
  }
  return () => {
    if (host.isConnected) return;
    host.unwire && host.unwire();
    if (window.Plotly) window.Plotly.purge(host);
  };
}
