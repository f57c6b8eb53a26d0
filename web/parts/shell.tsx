import { ActionIcon, AppShell, Burger, Group, Text, useMantineColorScheme, VisuallyHidden } from '@mantine/core';
import { useDisclosure, useHotkeys, useNetwork } from '@mantine/hooks';
import {
  IconBook,
  IconBrightnessAuto,
  IconKeyboard,
  IconLogout,
  IconMoon,
  IconSearch,
  IconSun,
  IconWorld,
  IconWorldOff,
} from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { Link, Outlet, useNavigate, useRouterState } from '@tanstack/react-router';
import { Fragment, useEffect, useRef } from 'react';
import { type Keys, keysList, useKeys } from '../lib/keys.ts';
import { later } from '../lib/later.tsx';
import { startLive, useLive } from '../lib/live.ts';
import { topRole, useMe } from '../lib/session.ts';
import { signOut } from '../lib/sign-out.ts';
import { useZone } from '../lib/time.ts';
import { trpc } from '../lib/trpc.ts';
import { CONTENT, focusContent } from '../ui/focus.ts';
import { Mark } from '../ui/mark.tsx';
import { Notice } from '../ui/notice.tsx';
import { useReviewsWaiting } from './also-waiting.tsx';
import { NAV } from './nav.ts';
import { StopBanner, StopButton } from './stops.tsx';

// loaded ahead of time: until its field has the focus, keys would act on the page
const Palette = later(async () => (await import('./palette.tsx')).default, { soon: true });
const KeysList = later(async () => (await import('./keys-list.tsx')).default);

/** The frame of every page: navigation, the signed-in person, preferences. */
export function Shell() {
  const [finding, find] = useDisclosure();
  // wherever the focus is, even in the policy editor
  useHotkeys([['mod+K', find.open]], [], true);
  const [opened, menu] = useDisclosure();
  const path = useRouterState({ select: (state) => state.location.pathname });
  const { id, tenant, has } = useMe();
  const [listing, list] = useDisclosure();
  const navigate = useNavigate();
  const keys: Keys = {
    ...Object.fromEntries(
      NAV.flatMap(({ to, label, least, key }) =>
        key && has(least) ? [[`g ${key}`, [`Go to ${label}`, () => void navigate({ to })]]] : [],
      ),
    ),
    '?': ['These keys', list.open],
  };
  useKeys(keys);
  useEffect(() => {
    keysList.open = list.open;
  }, [list.open]);
  const who = id && `${tenant}/${id}`;
  useEffect(() => (who ? startLive(who) : undefined), [who]);
  const shown = useRef(path);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the menu closes when the path changes
  useEffect(() => {
    menu.close();
    if (shown.current === path) return;
    shown.current = path;
    // the pressed link may be gone: keyboard and screen reader continue at the start of the page
    focusContent();
  }, [path]);
  return (
    <AppShell
      header={{ height: { base: 48, sm: 0 } }}
      navbar={{ width: 216, breakpoint: 'sm', collapsed: { mobile: !opened } }}
      padding={{ base: 'sm', sm: 'lg' }}
      transitionDuration={0}
    >
      <a className="skip" href={`#${CONTENT}`}>
        Skip to the content
      </a>
      <AppShell.Header hiddenFrom="sm" px="xs">
        <Group h="100%" gap="xs">
          <Burger
            opened={opened}
            onClick={menu.toggle}
            size="sm"
            aria-label={opened ? 'Close the navigation' : 'Open the navigation'}
          />
          <Brand />
        </Group>
      </AppShell.Header>
      <AppShell.Navbar p="xs">
        <AppShell.Section visibleFrom="sm" py={6}>
          <Brand />
        </AppShell.Section>
        <AppShell.Section>
          <FindButton open={find.open} />
        </AppShell.Section>
        <AppShell.Section grow style={{ overflowY: 'auto' }}>
          <Navigation />
        </AppShell.Section>
        <AppShell.Section pt={8} style={{ borderTop: '1px solid var(--line)' }}>
          <StopButton fullWidth />
          <Person />
        </AppShell.Section>
      </AppShell.Navbar>
      <AppShell.Main id={CONTENT} tabIndex={-1} style={{ outline: 'none' }}>
        <Offline />
        <StopBanner />
        <Outlet />
      </AppShell.Main>
      {finding ? <Palette onClose={find.close} /> : null}
      {listing ? <KeysList everywhere={Object.keys(keys)} onClose={list.close} /> : null}
    </AppShell>
  );
}

function Offline() {
  if (useNetwork().online) return null;
  return (
    <div style={{ marginBottom: 'var(--mantine-spacing-md)' }}>
      <Notice tone="wait" title="You are offline" urgent>
        What you see may be out of date. It goes on by itself when you are connected.
      </Notice>
    </div>
  );
}

function FindButton({ open }: { open: () => void }) {
  const keys = /Mac|iPhone|iPad/.test(navigator.platform) ? '⌘K' : 'Ctrl K';
  return (
    <button type="button" className="find" onClick={open}>
      <IconSearch size={16} stroke={1.7} aria-hidden />
      Find <kbd>{keys}</kbd>
    </button>
  );
}

function Brand() {
  return (
    <Link to="/" className="brand">
      <Mark /> Agent Governance
    </Link>
  );
}

function Navigation() {
  const me = useMe();
  const counts = {
    // approvers see how many wait for them; others see how many wait at all
    holds:
      useQuery(
        trpc.escrow.list.queryOptions({ status: 'held', limit: 1, ...(me.has('approver') && { mine: 'needed' }) }),
      ).data?.total ?? 0,
    reviews: useReviewsWaiting(),
  };
  const entries = NAV.filter(({ least }) => me.has(least));
  return (
    <nav className="nav" aria-label="Pages">
      {entries.map(({ to, label, icon: Shape, group, count }, n) => {
        const number = count ? counts[count] : 0;
        return (
          <Fragment key={to}>
            {n > 0 && entries[n - 1]?.group !== group ? <div className="nav-group">{group}</div> : null}
            <Link to={to} activeOptions={{ exact: to === '/', includeSearch: false }}>
              <Shape size={18} stroke={1.7} aria-hidden />
              {label}
              {number > 0 ? (
                <span className="count">
                  {number}
                  <VisuallyHidden component="span"> waiting</VisuallyHidden>
                </span>
              ) : null}
            </Link>
          </Fragment>
        );
      })}
      {entries.at(-1)?.group === 'Help' ? null : <div className="nav-group">Help</div>}
      <a href="/docs" target="_blank" rel="noopener">
        <IconBook size={18} stroke={1.7} aria-hidden />
        Documentation
      </a>
    </nav>
  );
}

const SCHEMES = { auto: IconBrightnessAuto, light: IconSun, dark: IconMoon } as const;

function Person() {
  const me = useMe();
  const [zone, setZone] = useZone();
  const { colorScheme, setColorScheme } = useMantineColorScheme();
  const live = useLive();
  const next = { auto: 'light', light: 'dark', dark: 'auto' } as const;
  const Scheme = SCHEMES[colorScheme];
  const Zone = zone === 'utc' ? IconWorld : IconWorldOff;
  return (
    <div style={{ paddingTop: 8 }}>
      <Link to="/account" className="person cut" title={me.email}>
        {me.name || me.email}
      </Link>
      <Text size="xs" c="dimmed" px={8} className="cut">
        {topRole(me.roles) ?? 'no role'} · {me.tenant}
      </Text>
      <Group gap={2} mt={6} px={4}>
        <ActionIcon
          variant="subtle"
          color="gray"
          aria-label={`Times are ${zone === 'utc' ? 'in UTC' : 'local'}: change`}
          title={zone === 'utc' ? 'Times in UTC' : 'Local times'}
          onClick={() => setZone(zone === 'utc' ? 'local' : 'utc')}
        >
          <Zone size={17} stroke={1.7} />
        </ActionIcon>
        <ActionIcon
          variant="subtle"
          color="gray"
          aria-label={`Colors: ${colorScheme}. Change`}
          title={`Colors: ${colorScheme}`}
          onClick={() => setColorScheme(next[colorScheme])}
        >
          <Scheme size={17} stroke={1.7} />
        </ActionIcon>
        <ActionIcon
          variant="subtle"
          color="gray"
          visibleFrom="sm"
          aria-label="Keys on this page"
          title="Keys on this page"
          onClick={keysList.open}
        >
          <IconKeyboard size={17} stroke={1.7} />
        </ActionIcon>
        <ActionIcon variant="subtle" color="gray" aria-label="Sign out" title="Sign out" onClick={() => void signOut()}>
          <IconLogout size={17} stroke={1.7} />
        </ActionIcon>
        <span
          className="live"
          data-tone={live === 'live' ? 'ok' : 'wait'}
          role="status"
          title={live === 'live' ? 'This page updates automatically' : 'This page may be out of date'}
        >
          {live === 'live' ? 'live' : 'connecting…'}
        </span>
      </Group>
    </div>
  );
}
