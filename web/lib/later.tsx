import { type ComponentType, type ReactNode, useEffect, useState } from 'react';

/**
 * A component whose code does not come with that of its page. `soon`: it is asked for at once, while the page asks for its
 * data. Until it is there, `meanwhile` is.
 *
 * It is not React's `lazy`: what a `Suspense` shows in its place stays for 300 ms, however soon the code is there.
 */
export function later<Props extends object>(
  load: () => Promise<ComponentType<Props>>,
  { meanwhile = null, soon = false }: { meanwhile?: ReactNode; soon?: boolean } = {},
): (props: Props) => ReactNode {
  let Loaded: ComponentType<Props> | undefined;
  let loading: Promise<void> | undefined;
  const begin = () => {
    loading ??= load().then(
      (component) => {
        Loaded = component;
      },
      (error) => {
        // the next one tries again
        loading = undefined;
        throw error;
      },
    );
    return loading;
  };
  // its fault is that of whoever needs it
  if (soon) begin().catch(() => undefined);
  return function Later(props) {
    const [there, stand] = useState(Loaded !== undefined);
    useEffect(() => {
      // the code may have come since this was rendered without it
      if (there) return;
      let gone = false;
      const say = (state: () => boolean) => gone || stand(state);
      begin().then(
        () => say(() => true),
        (error) =>
          say(() => {
            throw error;
          }),
      );
      return () => {
        gone = true;
      };
    }, [there]);
    return there && Loaded ? <Loaded {...props} /> : meanwhile;
  };
}
