// Draws the page's plots, in light or dark as the browser prefers until the button says otherwise.
(function () {
  "use strict";
  const root = document.documentElement;
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const colours = {
    light: ["#0b5cad", "#c2570c", "#2f7d32", "#8e3ba8", "#b3261e", "#00798c", "#7a6a00", "#5b6470"],
    dark: ["#7db7f5", "#ffa45c", "#7fd188", "#d69aed", "#ff8a80", "#5fd3e0", "#e3cf57", "#b4bec9"],
  };
  // Each colour has a contrast of at least 3 to the background.
  const heat = { light: ["#c08500", "#2f7d32", "#0b2e4f"], dark: ["#4a6f9e", "#5fd3e0", "#fff3a8"] };
  let chosen = null;

  function config(theme) {
    const style = getComputedStyle(root);
    const of = (name) => style.getPropertyValue(name).trim();
    const narrow = root.clientWidth < 600;
    const text = { labelColor: of("--faint"), titleColor: of("--faint") };
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      axis: { ...text, domainColor: of("--line"), gridColor: of("--line"), tickColor: of("--line"), labelLimit: narrow ? 110 : 200 },
      legend: { ...text, labelLimit: 240, titleLimit: 0, orient: "top", direction: "horizontal", columns: narrow ? 2 : 6 },
      view: { stroke: "transparent" },
      bar: { color: colours[theme][0] },
      range: { category: colours[theme], heatmap: heat[theme] },
    };
  }

  async function draw() {
    const theme = chosen || (prefers.matches ? "dark" : "light");
    root.dataset.theme = theme;
    root.removeAttribute("data-drawn");
    const options = { actions: false, ast: true, renderer: "svg", config: config(theme), tooltip: { theme } };
    await Promise.all(specs.map((one) => vegaEmbed("#chart-" + one.name, one.spec, options)));
    root.dataset.drawn = theme;
  }

  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    draw();
  });
  prefers.addEventListener("change", draw);
  draw();
})();
