import { Button, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { useMe } from '../../lib/session.ts';
import { trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { ButtonLink } from '../../ui/link.tsx';
import type { PolicyDetail } from './draft.tsx';

type Action = 'submit' | 'deploy' | 'revoke' | 'break_glass';

/** The actions this person can take on the policy now. Others are hidden, or say why they are unavailable. */
export function PolicyActions({ policy }: { policy: PolicyDetail }) {
  const [open, setOpen] = useState<Action>();
  const standing = useQuery(trpc.machines.policy.queryOptions({ id: policy.id }));
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const id = policy.id;
  const submit = useMutation(trpc.policies.submit.mutationOptions({ meta: { quiet: false } }));
  const approve = useMutation(trpc.policies.approve.mutationOptions());
  const revoke = useMutation(trpc.policies.revoke.mutationOptions());
  const breakGlass = useMutation(trpc.policies.breakGlass.mutationOptions());
  const me = useMe();
  // not part of the machine: if the tenant does not require approval, only an admin can revoke a policy
  const mayRevoke = settings.data && (!settings.data.approval_required || me.has('admin'));
  const may = (event: string) => standing.data?.next.find((one) => one.event === event)?.you.allowed === true;
  const enforced = policy.live_version !== null;
  const close = () => setOpen(undefined);
  const direct = settings.data?.approval_required === false && policy.status === 'draft';

  return (
    <>
      {may('revoke') && mayRevoke ? (
        <Button variant="default" onClick={() => setOpen('revoke')}>
          Revoke
        </Button>
      ) : null}
      {may('break_glass') && policy.status !== 'deployed' && settings.data?.approval_required ? (
        <Button variant="default" onClick={() => setOpen('break_glass')}>
          Break glass
        </Button>
      ) : null}
      {may('submit') ? (
        <Button variant={direct && may('approve') ? 'default' : 'filled'} onClick={() => setOpen('submit')}>
          Submit for review
        </Button>
      ) : null}
      {direct && may('approve') ? (
        <Button onClick={() => setOpen('deploy')}>Enforce version {policy.version}</Button>
      ) : null}
      {policy.status === 'pending_approval' || policy.open_review ? (
        <ButtonLink to="/review/$id" params={{ id }}>
          Review
        </ButtonLink>
      ) : null}

      <ConfirmDialog
        opened={open === 'submit'}
        onClose={close}
        title={`Submit version ${policy.version} for review`}
        action="Submit"
        danger={false}
        reason={{ label: 'Note for the reviewer', comment: true, placeholder: 'What changes, and why' }}
        onConfirm={async (note) => {
          await submit.mutateAsync({ id, ...(note && { note }) });
          toastDone('Submitted', 'It is enforced once another person approves it.');
        }}
      >
        Nothing is enforced until someone other than its author approves it.
      </ConfirmDialog>
      <ConfirmDialog
        opened={open === 'deploy'}
        onClose={close}
        title={`Enforce version ${policy.version}`}
        action="Enforce"
        danger={false}
        onConfirm={async () => {
          await approve.mutateAsync({ id, version: policy.version });
          toastDone(`Version ${policy.version} is enforced`);
        }}
      >
        This tenant does not require approval: every proxy gets it within one poll interval.
      </ConfirmDialog>
      <ConfirmDialog
        opened={open === 'revoke'}
        onClose={close}
        title={`Revoke ${id}`}
        action="Revoke the policy"
        typed={id}
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          await revoke.mutateAsync({ id, reason });
          toastDone(
            'Revoked',
            enforced ? 'Proxies stop enforcing it at their next poll.' : 'Nothing of it was enforced.',
          );
        }}
      >
        {enforced
          ? 'Proxies stop enforcing it within one poll interval. What only this policy permits is denied from then on; what only it forbids or holds is not any more.'
          : 'No version of it is enforced, so nothing changes for agents. It stays here with its history, and a new version makes it a draft again.'}
      </ConfirmDialog>
      <ConfirmDialog
        opened={open === 'break_glass'}
        onClose={close}
        title="Break glass"
        action={`Enforce version ${policy.version} now`}
        typed={id}
        reason={{ label: 'Reason', required: true, placeholder: 'The incident, and why it cannot wait' }}
        onConfirm={async (reason) => {
          await breakGlass.mutateAsync({ id, version: policy.version, reason });
          toastDone(`Version ${policy.version} is enforced`, 'It needs a review by another approver.');
        }}
      >
        <Text component="span">
          Version {policy.version} is enforced immediately, without approval. This is written to the audit log as{' '}
          <strong>critical</strong>, and a review stays open until another approver closes it.
        </Text>
      </ConfirmDialog>
    </>
  );
}
