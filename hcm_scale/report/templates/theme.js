// Light or dark: as the system says, or as the button was last pressed.
const root = document.documentElement;
const dark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const remember = (value) => {
  try {
    if (value) localStorage.setItem("hcm-theme", value);
    return localStorage.getItem("hcm-theme");
  } catch {
    return null; // a page opened from a file may have no storage
  }
};

const saved = remember();
if (saved === "light" || saved === "dark") root.dataset.theme = saved;

function startTheme() {
  const button = document.getElementById("theme");
  const show = () => button.setAttribute("aria-pressed", String(dark()));
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    remember(root.dataset.theme);
    show();
  });
  show();
}
