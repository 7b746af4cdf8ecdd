// The slots of a cluster.

const SLOTS = 16_384;

/** CRC16 (XMODEM) after one more byte. */
function next(crc: number, byte: number): number {
  crc ^= byte << 8;
  for (let i = 0; i < 8; i++) crc = ((crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
  return crc;
}

/** The key's slot in a cluster. */
export function slotOf(key: string): number {
  const open = key.indexOf('{');
  const close = key.indexOf('}', open + 1);
  const part = open >= 0 && close > open + 1 ? key.slice(open + 1, close) : key;
  return Buffer.from(part).reduce(next, 0) % SLOTS;
}

let tags: number[] | undefined;

/** The smallest number whose decimal text has that slot. */
export function tagOf(slot: number): number {
  if (!tags) {
    const [found, crcs]: number[][] = [[], []];
    for (let n = 0, left = SLOTS; left > 0; n++) {
      const crc = (crcs![n] = next(n < 10 ? 0 : crcs![Math.floor(n / 10)]!, 48 + (n % 10)));
      if (found![crc % SLOTS] !== undefined) continue;
      found![crc % SLOTS] = n;
      left--;
    }
    tags = found!;
  }
  return tags[slot]!;
}
