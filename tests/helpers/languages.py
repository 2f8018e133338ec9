"""Small parallel corpora of English and six other languages with different scripts."""

import itertools
import random

ENGLISH = "The {a} {n} {v} the {b} {o}."
ADJECTIVES = "red big small old thin white".split()
NOUNS = "dog cat bird horse monkey child".split()
VERBS = "sees likes finds buys".split()
OBJECTS = "house paper apple phone door cup".split()

# {language: (sentence template, translations of ADJECTIVES, of NOUNS, of VERBS, of OBJECTS)}
LANGUAGES = {
    "zh": ("{a}{n}{v}{b}{o}。", "红色的 大的 小的 老的 瘦的 白色的", "狗 猫 鸟 马 猴子 孩子", "看见 喜欢 找到 买",
           "房子 纸 苹果 电话 门 杯子"),
    "ja": ("{a}{n}が{b}{o}を{v}。", "赤い 大きい 小さい 古い 細い 白い", "犬 猫 鳥 馬 猿 子供",
           "見る 好む 見つける 買う", "家 紙 りんご 電話 ドア カップ"),
    "th": ("{n}{a}{v}{o}{b}", "สีแดง ใหญ่ เล็ก เก่า ผอม สีขาว", "หมา แมว นก ม้า ลิง เด็ก", "เห็น ชอบ พบ ซื้อ",
           "บ้าน กระดาษ แอปเปิล โทรศัพท์ ประตู ถ้วย"),
    "ar": ("{n} {a} {v} {o} {b}.", "الأحمر الكبير الصغير القديم النحيف الأبيض", "الكلب القط الطائر الحصان القرد الطفل",
           "يرى يحب يجد يشتري", "البيت الورق التفاح الهاتف الباب الكوب"),
    "tr": ("{A} {n} {b} {o} {v}.", "kırmızı büyük küçük eski ince beyaz", "köpek kedi kuş at maymun çocuk",
           "görüyor seviyor buluyor alıyor", "evi kağıdı elmayı telefonu kapıyı bardağı"),
    "hi": ("{a} {n} {b} {o} {v} है।", "लाल बड़ा छोटा पुराना पतला सफ़ेद", "कुत्ता बिल्ला पक्षी घोड़ा बंदर बच्चा",
           "देखता चाहता पाता खरीदता", "घर कागज़ सेब फ़ोन दरवाज़ा प्याला"),
}  # fmt: skip


def toy_pairs(language, seed):
    """Return all 5,184 pairs (English sentence, its translation into `language`) in random order."""
    template, *words = LANGUAGES[language]
    words = [text.split() for text in words]
    pairs = []
    for a, n, v, b, o in itertools.product(range(6), range(6), range(4), range(6), range(6)):
        source = ENGLISH.format(a=ADJECTIVES[a], n=NOUNS[n], v=VERBS[v], b=ADJECTIVES[b], o=OBJECTS[o])
        adjectives, nouns, verbs, objects = words
        capital = adjectives[a].replace("i", "İ", 1) if adjectives[a][0] == "i" else adjectives[a].capitalize()
        target = template.format(a=adjectives[a], A=capital, n=nouns[n], v=verbs[v], b=adjectives[b], o=objects[o])
        pairs.append((source, target))
    random.Random(seed).shuffle(pairs)
    return pairs
