import { type ComponentType, type ReactNode, useEffect, useState } from 'react';

/**
 * A component whose code is loaded separately from that of its page. `soon`: loading starts at once, while the page requests its
 * data. Until it is loaded, `meanwhile` is shown.
 *
 * It is not React's `lazy`: a `Suspense` fallback stays for 300 ms, however soon the code arrives.
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
        // the next attempt tries again
        loading = undefined;
        throw error;
      },
    );
    return loading;
  };
  // the error surfaces where the component is used
  if (soon) begin().catch(() => undefined);
  return function Later(props) {
    const [there, stand] = useState(Loaded !== undefined);
    useEffect(() => {
      // the code may have arrived since this was rendered without it
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
