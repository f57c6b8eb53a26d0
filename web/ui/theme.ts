import { type CSSVariablesResolver, createTheme, type MantineColorsTuple } from '@mantine/core';

/** The nonce of this page, for style elements created at run time (see server/api/static.ts). */
export const styleNonce = document.querySelector<HTMLMetaElement>('meta[property="csp-nonce"]')?.nonce ?? '';
// where the scroll lock of dialogs looks for it
Object.assign(globalThis, { __webpack_nonce__: styleNonce });

const pine: MantineColorsTuple = [
  '#e8f4f4',
  '#d3e6e7',
  '#a8cdcf',
  '#7ab3b6',
  '#559da2',
  '#3d8f95',
  '#2c868c',
  '#1a6f76',
  '#0f5c63',
  '#00484f',
];
const gray: MantineColorsTuple = [
  '#f6f8f7',
  '#eef1f0',
  '#e2e7e5',
  '#d3dad7',
  '#bcc6c3',
  '#8f9c98',
  '#5c6966',
  '#45524f',
  '#2c3735',
  '#17211f',
];
/** In the dark scheme 0 is text, 4 lines, 6 fields, 7 the page. */
const dark: MantineColorsTuple = [
  '#e2e9e7',
  '#c3cecb',
  '#9bada8',
  '#6f827d',
  '#2c3836',
  '#222d2b',
  '#1a2322',
  '#111817',
  '#0d1312',
  '#080c0b',
];

export const theme = createTheme({
  primaryColor: 'pine',
  primaryShade: { light: 8, dark: 7 },
  colors: { pine, gray, dark },
  fontFamily: 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif',
  fontFamilyMonospace: 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "Liberation Mono", monospace',
  fontSizes: { xs: '0.75rem', sm: '0.8125rem', md: '0.875rem', lg: '1rem', xl: '1.25rem' },
  spacing: { xs: '0.5rem', sm: '0.75rem', md: '1rem', lg: '1.5rem', xl: '2rem' },
  headings: {
    fontWeight: '650',
    sizes: {
      h1: { fontSize: '1.375rem', lineHeight: '1.3' },
      h2: { fontSize: '1.0625rem', lineHeight: '1.35' },
      h3: { fontSize: '0.9375rem', lineHeight: '1.4' },
      h4: { fontSize: '0.875rem', lineHeight: '1.4' },
    },
  },
  defaultRadius: 'sm',
  radius: { xs: '3px', sm: '6px', md: '8px', lg: '12px', xl: '20px' },
  cursorType: 'pointer',
  respectReducedMotion: true,
  components: {
    Paper: { defaultProps: { withBorder: true, p: 'md' } },
    Button: { defaultProps: { size: 'sm' } },
    // a dialog is a Paper, and adds that padding to its own
    Modal: {
      defaultProps: {
        centered: true,
        padding: 'xs',
        overlayProps: { backgroundOpacity: 0.5 },
        closeButtonProps: { 'aria-label': 'Close' },
      },
    },
    // the page already has a banner
    ModalHeader: { defaultProps: { role: 'presentation' } },
    DrawerHeader: { defaultProps: { role: 'presentation' } },
    // the reason why a form was refused is read aloud
    InputError: { defaultProps: { role: 'alert' } },
    Drawer: { defaultProps: { padding: 'xs', closeButtonProps: { 'aria-label': 'Close' } } },
    Notification: { defaultProps: { closeButtonProps: { 'aria-label': 'Close this message' } } },
    Anchor: { defaultProps: { underline: 'always' } },
  },
});

export const cssVariables: CSSVariablesResolver = () => ({
  variables: {},
  light: {
    '--mantine-color-body': '#fbfcfb',
    '--mantine-color-text': '#17211f',
    '--mantine-color-dimmed': '#56635f',
    '--mantine-color-anchor': '#0f5c63',
    '--mantine-color-error': '#a8201a',
    '--mantine-color-placeholder': '#66736f',
    '--mantine-color-default-border': '#d3dad7',
    '--page': '#f3f5f4',
    '--surface': '#ffffff',
    '--line': '#dde3e0',
    '--hover': '#eef3f2',
  },
  dark: {
    '--mantine-color-body': '#161e1d',
    '--mantine-color-dimmed': '#9bada8',
    '--mantine-color-anchor': '#7fc6cb',
    '--mantine-color-error': '#ff9d96',
    '--mantine-color-placeholder': '#93a39f',
    '--mantine-color-default-border': '#33413e',
    '--page': '#0f1615',
    '--surface': '#161e1d',
    '--line': '#28332f',
    '--hover': '#1e2927',
  },
});
