// The theme that was chosen, before anything is drawn; without a choice the system decides.
export const KEY = "klamm-theme";

export function applyTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

applyTheme(localStorage.getItem(KEY));
