// Writes vectors.json with Go's implementation of transparency logs: `go run vectors.go > vectors.json`.
package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type inclusion struct {
	Index, Size int64
	Proof       []string
}

type consistency struct {
	Old, New int64
	Proof    []string
}

func main() {
	const most = 600
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, x := range indexes {
			out[i] = stored[x]
		}
		return out, nil
	})
	roots := map[string]string{}
	for n := int64(0); n < most; n++ {
		hashes, err := tlog.StoredHashes(n, []byte(fmt.Sprintf("entry %d", n)), reader)
		check(err)
		stored = append(stored, hashes...)
		root, err := tlog.TreeHash(n+1, reader)
		check(err)
		roots[fmt.Sprint(n+1)] = hex.EncodeToString(root[:])
	}
	var inclusions []inclusion
	var consistencies []consistency
	for _, size := range []int64{1, 2, 3, 7, 8, 255, 256, 257, 511, 599, 600} {
		for _, index := range []int64{0, 1, 2, 6, 7, 100, 254, 255, 256, 510, 598, 599} {
			if index < size {
				proof, err := tlog.ProveRecord(size, index, reader)
				check(err)
				inclusions = append(inclusions, inclusion{index, size, encode(proof)})
			}
			if index > 0 && index <= size {
				proof, err := tlog.ProveTree(size, index, reader)
				check(err)
				consistencies = append(consistencies, consistency{index, size, encode(proof)})
			}
		}
	}
	paths := map[string]string{}
	for _, n := range []int64{0, 5, 999, 1000, 1234067} {
		paths[fmt.Sprint(n)] = tlog.Tile{H: 8, L: 1, N: n, W: 256}.Path()
	}
	seed := sha256.Sum256([]byte("a key for tests"))
	private := ed25519.NewKeyFromSeed(seed[:])
	skey := fmt.Sprintf("PRIVATE+KEY+%s", "example.com/log")
	id := sha256.Sum256(append([]byte("example.com/log\n\x01"), private.Public().(ed25519.PublicKey)...))
	skey = fmt.Sprintf("%s+%08x+%s", skey, id[:4], base64.StdEncoding.EncodeToString(append([]byte{1}, seed[:]...)))
	signer, err := note.NewSigner(skey)
	check(err)
	rootHash, err := tlog.TreeHash(most, reader)
	check(err)
	text := fmt.Sprintf("example.com/log\n%d\n%s\n", most, base64.StdEncoding.EncodeToString(rootHash[:]))
	signed, err := note.Sign(&note.Note{Text: text}, signer)
	check(err)
	vkey, err := note.NewEd25519VerifierKey("example.com/log", private.Public().(ed25519.PublicKey))
	check(err)
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	check(encoder.Encode(map[string]interface{}{
		"roots": roots, "inclusions": inclusions, "consistencies": consistencies, "paths": paths,
		"seed": hex.EncodeToString(seed[:]), "vkey": vkey, "note": string(signed),
	}))
}

func encode(hashes []tlog.Hash) []string {
	out := []string{}
	for _, hash := range hashes {
		out = append(out, hex.EncodeToString(hash[:]))
	}
	return out
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
