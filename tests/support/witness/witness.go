// Cosigns checkpoints as C2SP's tlog-witness and tlog-cosignature say, with Go's implementation of notes and trees:
// nothing here is shared with what it is to check. It remembers in memory, so a new process knows no log.
//
//	witness -listen 127.0.0.1:0 -name NAME -seed HEX -log VERIFIER_KEY
package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type checkpoint struct {
	size int64
	root tlog.Hash
}

type witness struct {
	mutex    sync.Mutex
	name     string
	key      ed25519.PrivateKey
	logs     map[string]note.Verifier
	cosigned map[string]checkpoint
}

func (w *witness) addCheckpoint(answer http.ResponseWriter, request *http.Request) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	body, err := io.ReadAll(http.MaxBytesReader(answer, request.Body, 1<<20))
	head, signed, found := strings.Cut(string(body), "\n\n")
	if err != nil || request.Method != "POST" || !found {
		http.Error(answer, "bad request", 400)
		return
	}
	origin, _, _ := strings.Cut(signed, "\n")
	verifier, known := w.logs[origin]
	if !known {
		http.Error(answer, "unknown log", 404)
		return
	}
	opened, err := note.Open([]byte(signed), note.VerifierList(verifier))
	if err != nil {
		http.Error(answer, err.Error(), 403)
		return
	}
	lines := strings.Split(head, "\n")
	oldSize, err := strconv.ParseInt(strings.TrimPrefix(lines[0], "old "), 10, 64)
	parts := strings.Split(opened.Text, "\n")
	if err != nil || !strings.HasPrefix(lines[0], "old ") || len(parts) < 4 {
		http.Error(answer, "bad request", 400)
		return
	}
	size, err1 := strconv.ParseInt(parts[1], 10, 64)
	root, err2 := tlog.ParseHash(parts[2])
	var proof tlog.TreeProof
	for _, line := range lines[1:] {
		hash, err3 := tlog.ParseHash(line)
		if err3 != nil {
			err1 = err3
		}
		proof = append(proof, hash)
	}
	if err1 != nil || err2 != nil || oldSize > size {
		http.Error(answer, "bad request", 400)
		return
	}
	previous := w.cosigned[origin]
	if previous.size != oldSize || (oldSize == size && previous.root != root) {
		answer.Header().Set("Content-Type", "text/x.tlog.size")
		answer.WriteHeader(409)
		fmt.Fprintf(answer, "%d\n", previous.size)
		return
	}
	if oldSize == 0 && len(proof) > 0 || oldSize > 0 && tlog.CheckTree(proof, size, root, oldSize, previous.root) != nil {
		http.Error(answer, "the proof does not verify", 422)
		return
	}
	w.cosigned[origin] = checkpoint{size, root}
	fmt.Fprint(answer, w.cosign(opened.Text))
}

func (w *witness) cosign(text string) string {
	now := time.Now().Unix()
	signature := ed25519.Sign(w.key, []byte(fmt.Sprintf("cosignature/v1\ntime %d\n%s", now, text)))
	public := w.key.Public().(ed25519.PublicKey)
	id := sha256.Sum256(append([]byte(w.name+"\n\x04"), public...))
	content := binary.BigEndian.AppendUint64(append([]byte{}, id[:4]...), uint64(now))
	return "— " + w.name + " " + base64.StdEncoding.EncodeToString(append(content, signature...)) + "\n"
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "")
	name := flag.String("name", "", "")
	seed := flag.String("seed", "", "")
	logKey := flag.String("log", "", "")
	flag.Parse()
	seedBytes, err := hex.DecodeString(*seed)
	verifier, err2 := note.NewVerifier(*logKey)
	if err != nil || err2 != nil {
		fmt.Fprintln(os.Stderr, err, err2)
		os.Exit(1)
	}
	w := &witness{
		name: *name, key: ed25519.NewKeyFromSeed(seedBytes),
		logs: map[string]note.Verifier{verifier.Name(): verifier}, cosigned: map[string]checkpoint{},
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(listener.Addr())
	http.HandleFunc("/add-checkpoint", w.addCheckpoint)
	fmt.Fprintln(os.Stderr, http.Serve(listener, nil))
}
