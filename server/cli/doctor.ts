import { NoSession } from '../../db/session.ts';
import { type Config, readConfig, serverSettingsHelp } from '../config.ts';
import { columns, command, JSON_FLAG } from './command.ts';
import { checkDatabase } from './doctor/database.ts';
import type { Finding, Report } from './doctor/report.ts';
import { checkMail, checkPooler, checkRedis, checkServer } from './doctor/services.ts';
import { checkDataDir, checkNames, checkPairs, checkProgram, shown } from './doctor/settings.ts';
import { withClient, withInstallation } from './installation.ts';

const doctor = command({
  name: 'doctor',
  summary: 'Check the settings, the data directory, the database and the keys',
  more: 'Each line is ok, warn or FAIL, with advice. Nothing is changed, and secrets are never shown. Exits with 1 on a FAIL.',
  flags: JSON_FLAG,
  async run({ flags, print }) {
    const findings: Finding[] = [];
    const report: Report = (level, check, detail, advice) =>
      findings.push({ check, level, detail, ...(advice !== undefined && { advice }) });
    const settings = serverSettingsHelp().map(({ name, fallback }) => ({
      name,
      value: process.env[name] ? shown(name, process.env[name]) : fallback,
      source: process.env[name] ? 'environment' : 'default',
    }));
    checkProgram(report);
    let config: Config | undefined;
    try {
      config = readConfig();
      report(
        'ok',
        'settings',
        `${settings.filter((s) => s.source !== 'default').length} of ${settings.length} are set`,
      );
    } catch (error) {
      report('FAIL', 'settings', (error as Error).message, 'fix these environment variables');
    }
    checkNames(report);
    if (config) {
      checkPairs(config, report);
      checkDataDir(config, report);
      await checkServer(config, report);
      if (config.redisUrl) await checkRedis(config.redisUrl, report);
      await checkMail(config, report);
      try {
        await withInstallation({}, async (installation) => {
          await checkPooler(installation, report);
          await withClient(installation.sessionUrl, {}, (client) => checkDatabase(client, config!, report));
        });
      } catch (error) {
        const { message, code } = error as NodeJS.ErrnoException;
        if (error instanceof NoSession) {
          const [what = '', remedy = ''] = message.split(': ');
          report('FAIL', 'pooler', what, remedy);
        } else {
          report(
            'FAIL',
            'database',
            message || code || 'no answer',
            'check that it is running and that the settings point to it',
          );
        }
      }
    }
    const ok = findings.every(({ level }) => level !== 'FAIL');
    const lines = findings.flatMap(({ level, check, detail, advice }) => [
      `${level.padEnd(5)} ${check.padEnd(16)} ${detail}`,
      ...(advice ? [`${' '.repeat(22)} -> ${advice}`] : []),
    ]);
    const table = columns(
      settings.map((s) => [s.name, s.value || '(not set)', s.source === 'default' ? 'default' : 'set']),
    );
    print(
      { ok, checks: findings, settings },
      flags.json ? [] : ['Settings', ...table.map((l) => `  ${l}`), '', ...lines],
    );
    return ok ? 0 : 1;
  },
});

export const doctorCommands = [doctor];
