import { closeSync, constants, fstatSync, openSync, write, writeSync } from 'node:fs';

/** Lines that wait for being written; more are dropped. */
const MOST_WAITING_BYTES = 1024 * 1024;
const CHUNK_BYTES = 64 * 1024;
/** How soon it is tried again after an error, and for a pipe that is full. */
const AGAIN_MS = 1000;
const BUSY_MS = 25;
/** How long the end of the process waits for a pipe that is full. */
const LAST_MS = 1000;

let dropped = 0;

/** How many lines this process has dropped because what they go to did not take them. */
export function droppedLines(): number {
  return dropped;
}

/**
 * Writes lines to a file descriptor, and never keeps its process waiting for that: while the descriptor takes nothing (its disk
 * is full, or nobody reads the pipe), the first lines are kept, more are dropped and counted, and once it takes lines again,
 * `notice` says in their place how many are missing. At the end of the process it writes what can be written, for a second at most.
 */
export class Output {
  readonly #fd: number;
  /** Writes to a file or to such a pipe are short and made at once, so that no end of the process loses or reorders lines. */
  readonly #instant: boolean;
  readonly #notice: (lines: number) => string;
  #waiting: string[] = [];
  #chunk = Buffer.alloc(0);
  #bytes = 0;
  #missing = 0;
  /** Since when another thread writes the chunk. */
  #writingSince: number | undefined;
  #resting: NodeJS.Timeout | undefined;

  constructor(fd: number, notice: (lines: number) => string) {
    const pipe = unblockedPipe(fd);
    this.#fd = pipe ?? fd;
    this.#instant = pipe !== undefined || isFile(fd);
    this.#notice = notice;
    process.on('exit', () => this.#finish());
  }

  write(line: string): void {
    // after a line that is missing, there are none until the notice
    if (this.#missing > 0 || this.#bytes + line.length > MOST_WAITING_BYTES) {
      this.#missing++;
      dropped++;
      return;
    }
    this.#add(line);
    this.#next();
  }

  #add(line: string): void {
    this.#waiting.push(line);
    this.#bytes += line.length;
  }

  #next(): void {
    if (this.#resting) return;
    while (this.#writingSince === undefined && this.#fill()) {
      if (this.#instant) {
        try {
          this.#written(writeSync(this.#fd, this.#chunk));
        } catch (error) {
          this.#rest(error as NodeJS.ErrnoException);
          return;
        }
        continue;
      }
      this.#writingSince = performance.now();
      write(this.#fd, this.#chunk, (error, bytes) => {
        this.#writingSince = undefined;
        if (error) this.#rest(error);
        else {
          this.#written(bytes);
          this.#next();
        }
      });
    }
  }

  /** Whether there is something to write. */
  #fill(): boolean {
    if (this.#chunk.length === 0 && this.#waiting.length > 0) {
      let many = 0;
      for (let length = 0; many < this.#waiting.length && length < CHUNK_BYTES; many++) {
        length += this.#waiting[many]!.length;
      }
      const lines = this.#waiting.splice(0, many).join('');
      this.#chunk = Buffer.from(lines);
      this.#bytes += this.#chunk.length - lines.length;
    }
    return this.#chunk.length > 0;
  }

  #written(bytes: number): void {
    this.#chunk = this.#chunk.subarray(bytes);
    this.#bytes -= bytes;
    if (this.#missing === 0 || this.#bytes > MOST_WAITING_BYTES / 2) return;
    this.#add(this.#notice(this.#missing));
    this.#missing = 0;
  }

  #rest({ code }: NodeJS.ErrnoException): void {
    this.#resting = setTimeout(
      () => {
        this.#resting = undefined;
        this.#next();
      },
      code === 'EAGAIN' ? BUSY_MS : AGAIN_MS,
    ).unref();
  }

  #finish(): void {
    const end = performance.now() + LAST_MS;
    if (this.#writingSince !== undefined) {
      // one that hangs would make this one hang as well
      if (end - this.#writingSince > 2 * LAST_MS) return;
      // the other thread still writes it
      this.#chunk = Buffer.alloc(0);
    }
    if (this.#missing > 0) this.#waiting.push(this.#notice(this.#missing));
    const sleeping = new Int32Array(new SharedArrayBuffer(4));
    while (this.#fill()) {
      try {
        this.#chunk = this.#chunk.subarray(writeSync(this.#fd, this.#chunk));
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN' || performance.now() > end) return;
        Atomics.wait(sleeping, 0, 0, BUSY_MS);
      }
    }
  }
}

function isFile(fd: number): boolean {
  try {
    return fstatSync(fd).isFile();
  } catch {
    // it may be closed, and then takes no lines
    return false;
  }
}

/**
 * The same pipe for writing that never blocks; undefined if it is none, or cannot be opened again. A write that blocks would also
 * keep the process from ending. The descriptor itself stays as it is, because other processes may share it.
 */
function unblockedPipe(fd: number): number | undefined {
  try {
    if (!fstatSync(fd).isFIFO()) return undefined;
    const pipe = openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK);
    if (fstatSync(pipe).isFIFO()) return pipe;
    closeSync(pipe);
  } catch {
    // such as where there is no /proc
  }
  return undefined;
}
